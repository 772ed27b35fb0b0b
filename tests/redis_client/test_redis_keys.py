"""Names of keys: what one script changes has one pair of braces."""

from __future__ import annotations

import re

from penstock.redis_client import keys


def test_keys_of_one_partition_have_one_hash_tag():
    own = [keys.partition_key("orders", 3), keys.group_partition_key("orders", 3, "billing")]
    assert {re.search(r"\{(.*?)\}", key)[1] for key in own} == {"orders:3"}
    first = [keys.partition_key("orders", 0), keys.mark_key("orders", "out"), keys.staged_key("orders", "a")]
    assert {re.search(r"\{(.*?)\}", key)[1] for key in first} == {"orders:0"}


def test_keys_of_one_group_have_one_hash_tag_and_differ():
    made = [
        keys.settings_key("orders"),
        keys.members_key("orders", "billing"),
        keys.alive_key("orders", "billing"),
        keys.changes_key("orders", "billing"),
    ]
    assert {re.search(r"\{(.*?)\}", key)[1] for key in made} == {"orders"}
    assert len(set(made)) == len(made)
