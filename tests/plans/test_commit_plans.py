"""The commit of a time is found by halves: no look at all commits, however many there are."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

START = datetime(2026, 1, 1, tzinfo=UTC)
MANY = """
WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 1000000)
INSERT INTO commits(id, created_at)
SELECT n, strftime('%Y-%m-%dT%H:%M:%S.000000+00:00', '2026-01-01', n || ' seconds') FROM numbers
"""


def test_a_million_commits_are_twenty_looks_by_number_in_one_snapshot(watch, open_session, direct):
    session = open_session()
    direct(MANY)

    for number in (0, 1, 333_333, 500_000, 999_999, 1_000_000):
        when = START + timedelta(seconds=number)
        plan = watch.plan(lambda when=when: session.commit_at(when))

        assert session.commit_at(when) == number
        began, head, *looks, ended = [sql for _, sql, _ in watch.seen]
        assert (began.split()[0], ended.split()[0]) == ("BEGIN", "COMMIT")
        assert "MAX(id)" in head
        assert len(looks) <= 20
        assert {step.partition(" (")[0] for step in plan} == {
            "SEARCH commits USING INTEGER PRIMARY KEY",
            "SEARCH commits",  # MAX
        }
