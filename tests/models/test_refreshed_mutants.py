"""The checker of refreshed tables is checked: each plausible mistake in what an epoch meets must be noticed by a small search."""

from __future__ import annotations

import tempfile
from dataclasses import replace

import pytest
from hypothesis import given
from refresh_histories import History, histories
from test_against_oracle import always_the_same

from penstock.checkpoint.table_files import TableFiles
from penstock.driver import refreshing
from penstock.driver.refreshing import RefreshedTables
from penstock.errors import PenstockError
from penstock.flow.tables import Refresh


def search() -> None:
    """Raise for the first difference that a few fixed examples show; each mutant needs a hundred at most."""

    @always_the_same(150)
    @given(histories)
    def compare(actions):
        with tempfile.TemporaryDirectory() as folder:
            history = History(folder)
            for what, value in actions:
                history.do(what, value)
            found, wanted = history.finish()
            assert found == wanted

    compare()


def rerun_meets_the_rows_of_today(patch):
    patch.setattr(TableFiles, "used", lambda self, epoch, found: dict(found))


def table_that_is_gone_is_that_of_the_last_committed_epoch_after_an_open_one(patch):
    patch.setattr(refreshing, "replace", lambda what, **new: what if "version" in new else replace(what, **new))


def table_that_is_gone_is_that_of_the_declaration(patch):
    init = RefreshedTables.__init__

    def forgetful(self, plan, checkpoint, run, before, *rest):
        init(self, plan, checkpoint, run, {}, *rest)

    patch.setattr(RefreshedTables, "__init__", forgetful)


def table_is_never_read_again(patch):
    used = RefreshedTables.used
    patch.setattr(RefreshedTables, "used", lambda self, epoch, now_us, *, stay: used(self, epoch, now_us, stay=True))


def table_is_read_in_every_epoch(patch):
    patch.setattr(Refresh, "every_us", property(lambda _: 0, lambda *_: None), raising=False)


def versions_are_removed_while_an_epoch_may_need_them(patch):
    used = RefreshedTables.used

    def removing(self, *args, **options):
        found = used(self, *args, **options)
        for version in self._files.versions():
            self._files.remove(version)
        return found

    patch.setattr(RefreshedTables, "used", removing)


def table_that_is_gone_has_no_rows(patch):
    read = Refresh.read

    def emptied(self):
        try:
            return read(self)
        except PenstockError:
            return self.stored(self.declared.rows.slice(0, 0))

    patch.setattr(Refresh, "read", emptied)


MUTANTS = [
    rerun_meets_the_rows_of_today,
    table_that_is_gone_is_that_of_the_last_committed_epoch_after_an_open_one,
    table_that_is_gone_is_that_of_the_declaration,
    table_is_never_read_again,
    table_is_read_in_every_epoch,
    versions_are_removed_while_an_epoch_may_need_them,
    table_that_is_gone_has_no_rows,
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.__name__)
def test_search_finds_what_is_broken_in_tables_that_are_read_again(monkeypatch, mutant):
    mutant(monkeypatch)
    with pytest.raises((AssertionError, PenstockError)):
        search()
