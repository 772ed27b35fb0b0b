"""The pages that `make docs` builds: the API page has every public name, and the list of pages is that of the index."""

from __future__ import annotations

import re
from pathlib import Path

import penstock as ps

SITE = Path(__file__).parents[2] / "docs" / "site"
API = (SITE / "api.rst").read_text(encoding="utf-8")


def test_api_page_has_every_public_name_once():
    shown = re.findall(r"^\.\. auto(?:class|function):: (\w+)$", API, re.MULTILINE)
    # The version is no object with a docstring; errors come with their module.
    assert sorted(shown) == sorted(set(ps.__all__) - {"__version__", "PenstockError"})
    assert ".. automodule:: penstock.errors" in API


def test_pages_load_nothing_from_elsewhere_by_what_the_settings_say():
    styles = [path.read_text(encoding="utf-8") for path in (SITE / "static").glob("*")]
    extra = [path.read_text(encoding="utf-8") for path in (SITE / "pages").glob("*")]
    assert styles
    assert extra
    assert not [text for text in [*styles, *extra] if "//" in text]
    assert 'mermaid_output_format = "svg"' in (SITE / "conf.py").read_text(encoding="utf-8")
