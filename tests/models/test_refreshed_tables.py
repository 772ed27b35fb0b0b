"""Tables that are read again while a flow runs: each epoch meets one version, the same when it is run again, whatever happens in between."""

from __future__ import annotations

import tempfile

from hypothesis import HealthCheck, given, settings
from refresh_histories import History, histories


@given(histories)
@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
def test_each_epoch_meets_the_rows_that_were_there_when_it_was_first_begun(actions):
    with tempfile.TemporaryDirectory() as folder:
        history = History(folder)
        for what, value in actions:
            history.do(what, value)
        found, wanted = history.finish()
        assert found == wanted
