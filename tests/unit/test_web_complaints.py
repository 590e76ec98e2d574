"""What clients can make a server write into its log."""

from __future__ import annotations

import logging

from ontologia.testing import ManualClock
from ontologia.web.serving import OnceASecond


def test_the_same_complaint_is_written_once_a_second_and_counted(caplog):
    clock = ManualClock()
    log = logging.getLogger("tests.complaints")
    log.addFilter(OnceASecond(clock.monotonic))

    for _ in range(5):
        log.warning("refused %s", "a client")
    log.warning("another complaint")
    clock.advance(seconds=1)
    for _ in range(2):
        log.warning("refused %s", "another client")
    clock.advance(seconds=1)
    log.warning("another complaint")

    assert [record.getMessage() for record in caplog.records] == [
        "refused a client",
        "another complaint",
        "refused another client (and 4 times since the line before)",
        "another complaint",
    ]
