"""The figures of the charts are what happened, minute by minute, on both databases."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime

import pytest

from ontologia import Event, Field, Session
from ontologia.runtime.operator import Operator
from ontologia.runtime.session import core_of
from ontologia.store.events.operations import Selection
from ontologia.testing import ManualClock
from ontologia.web.console import sampler as module
from ontologia.web.console.sampler import Figures, Sampler, running_sampler
from tests.integration.running import PATIENCE, until

Open = Callable[..., Session]
pytestmark = [pytest.mark.req("NEW-241"), pytest.mark.each_database]


class ParcelSampled(Event):
    number: Field[int] = Field(default=0)
    fails: Field[int] = Field(default=0)


HANDLERS = ("ship", "bill")
TYPES = [ParcelSampled.__event_type__]


@pytest.fixture
def shop(open_session: Open, monkeypatch: pytest.MonkeyPatch) -> Session:
    monkeypatch.setattr(module, "_SECONDS", PATIENCE)  # a busy machine ends no look
    session = open_session(settings={"event_max_attempts": 3, "event_backoff_base_ms": 1})
    work(session)
    return session


def work(session: Session, *names: str, most: int = 1_000) -> None:
    """The handlers do what they can get; `ship` fails at first, as often as the event says.

    The clock stands still meanwhile, which it would not in a run.
    """
    store = session.event_store
    for name in names or HANDLERS:
        for event in store.claim(session.namespace, name, "s", TYPES, most, 30_000):
            place = (name, str(event.id))
            assert store.start(*place, lease_ms=30_000)
            detail = store.inspect_event(str(event.id))
            [claim] = [each for each in detail["claims"] if each["handler_id"] == name]
            if name == "ship" and claim["attempts"] < event.fails:
                store.release(*place, error="no box")
            else:
                store.ack(*place)


def emit(session: Session, number: int, **fields: int) -> None:
    for _ in range(number):
        session.commit(event=ParcelSampled(**fields))


def rates(figures: tuple[Figures, ...]) -> list[tuple[int, int, int]]:
    return [(each.came, each.done, each.failed) for each in figures]


def test_what_came_and_was_done_is_counted_in_its_minute(shop: Session, clock: ManualClock) -> None:
    emit(shop, 3)  # before: it is not known when they came
    sampler = Sampler(shop)
    emit(shop, 2)
    sampler.sample()
    clock.advance(seconds=70)
    work(shop)
    emit(shop, 1)
    sampler.sample()
    sampler.sample()

    in_all, shipped = sampler.series(), sampler.series("ship")

    assert sampler.handlers == ["bill", "ship"]
    assert rates(in_all.minutes) == [(2, 0, 0), (1, 10, 0)]
    assert rates(shipped.minutes) == [(2, 0, 0), (1, 5, 0)]
    assert in_all.began == in_all.minutes[0].at == datetime.fromisoformat("2026-01-01T00:00:00Z")
    [_, last] = shipped.minutes
    assert (last.p50, last.p95) == (pytest.approx(70, rel=0.02), pytest.approx(70, rel=0.02))
    assert sampler.series("nobody").minutes[0].came == 0


def test_failed_attempts_are_counted_once_each(shop: Session, clock: ManualClock) -> None:
    sampler = Sampler(shop)
    emit(shop, 1, fails=2)
    for _ in range(4):
        work(shop)
        sampler.sample()
        clock.advance(seconds=60)
        sampler.sample()

    assert [each.failed for each in sampler.series("ship").minutes] == [1, 1, 0, 0, 0]
    assert [each.done for each in sampler.series("ship").minutes] == [0, 0, 1, 0, 0]
    assert sum(each.failed for each in sampler.series().minutes) == 2


def test_what_failed_before_is_not_counted(shop: Session, clock: ManualClock) -> None:
    emit(shop, 1, fails=2)
    work(shop)
    clock.advance(seconds=5)  # within one minute
    sampler = Sampler(shop)
    sampler.sample()
    assert rates(sampler.series().minutes) == [(0, 0, 0)]
    work(shop)
    sampler.sample()

    assert rates(sampler.series().minutes) == [(0, 0, 1)]


def test_it_looks_by_itself_and_goes_on_after_a_look_that_failed(
    shop: Session, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "INTERVAL", 0.001)
    monkeypatch.setattr(module, "_SECONDS", 0)
    others = set(threading.enumerate())
    with running_sampler(shop) as sampler:
        emit(shop, 1)
        until(lambda: "the figures of the console wait" in caplog.text)
        monkeypatch.setattr(module, "_SECONDS", PATIENCE)
        until(lambda: sampler.series().minutes[0].came == 1)
    begun = set(threading.enumerate()) - others
    assert "ontologia-sampler" not in [each.name for each in begun]


def test_a_retried_dead_letter_is_counted_again_and_what_others_did_is_not(
    shop: Session, clock: ManualClock
) -> None:
    sampler = Sampler(shop)
    emit(shop, 1, fails=9)
    for _ in range(3):
        work(shop)
        sampler.sample()
        clock.advance(seconds=60)
    assert sum(each.failed for each in sampler.series("ship").minutes) == 3
    assert sum(each.done for each in sampler.series("bill").minutes) == 1
    Operator(shop, "ada").retry(Selection(handler="ship"))
    sampler.sample()
    work(shop)
    sampler.sample()

    assert sum(each.failed for each in sampler.series("ship").minutes) == 4
    assert sum(each.done for each in sampler.series("bill").minutes) == 1


def test_the_oldest_that_waits_has_its_age(shop: Session, clock: ManualClock) -> None:
    sampler = Sampler(shop)
    sampler.sample()
    emit(shop, 1)
    clock.advance(seconds=90)
    sampler.sample()
    clock.advance(seconds=20)
    sampler.sample()
    work(shop)
    clock.advance(seconds=60)
    sampler.sample()

    assert [each.oldest for each in sampler.series().minutes] == [None, 110, None]


def test_half_and_most_of_the_times_are_told_apart(shop: Session, clock: ManualClock) -> None:
    sampler = Sampler(shop)
    for seconds, number in ((1, 18), (30, 2)):
        emit(shop, number)
        clock.advance(seconds=seconds)
        work(shop)
    sampler.sample()

    [minute] = sampler.series("ship").minutes
    assert minute.p50 == pytest.approx(1, rel=0.02)
    assert minute.p95 == pytest.approx(30, rel=0.02)
    clock.advance(seconds=60 * 20)
    sampler.sample()
    assert sampler.series("ship").minutes[0] == minute  # kept as two figures from now on


def test_a_day_is_kept(shop: Session, clock: ManualClock) -> None:
    sampler = Sampler(shop)
    emit(shop, 1)
    sampler.sample()
    assert sampler.series(minutes=10_000).minutes[0].came == 1
    clock.advance(seconds=24 * 3600)
    sampler.sample()

    shown = sampler.series(minutes=10_000).minutes
    assert (len(shown), sum(each.came for each in shown)) == (24 * 60, 0)


def test_bounds_delay_what_is_counted_and_lose_nothing(
    shop: Session, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, bound in (("_NEW", 5), ("_WATCHED", 8), ("_PORTION", 3), ("_LOOKED", 4)):
        monkeypatch.setattr(module, name, bound)
    sampler = Sampler(shop)
    emit(shop, 40)
    work(shop)
    counted: list[int] = []
    for _ in range(30):
        sampler.sample()
        counted.append(sampler.series().minutes[0].came)

    assert counted[:2] == [5, 10]
    assert rates(sampler.series().minutes) == [(40, 80, 0)]


def test_a_handler_that_is_stuck_hides_nothing_of_the_others(
    shop: Session, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, bound in (("_WATCHED", 8), ("_PORTION", 3), ("_LOOKED", 4), ("_FRONT", 4)):
        monkeypatch.setattr(module, name, bound)
    sampler = Sampler(shop)
    for _ in range(10):
        clock.advance(seconds=5)
        emit(shop, 4)
        work(shop, "ship")
        analyse(shop)
        sampler.sample()
    for _ in range(3):  # those that are kept are looked at in turn
        sampler.sample()

    assert (done(sampler, "ship"), done(sampler, "bill")) == (40, 0)

    for _ in range(10):
        clock.advance(seconds=5)
        sampler.sample()
        work(shop, "bill", most=4)
        analyse(shop)
    sampler.sample()
    assert (done(sampler, "ship"), done(sampler, "bill")) == (40, 40)


def analyse(session: Session) -> None:
    """As autovacuum does at any moment: then PostgreSQL may read a small table without its index."""
    database = core_of(session).store.events.activity._database
    if "postgres" not in type(database).__module__:
        return
    with database.write() as tx:
        found = tx.all("SELECT schemaname FROM pg_tables WHERE tablename = 'ready'")
        for (schema,) in found:
            tx.run(f'ANALYZE "{schema}".ready')


def done(sampler: Sampler, handler: str | None = None) -> int:
    return sum(each.done for each in sampler.series(handler, minutes=1440).minutes)


def test_any_story_is_counted_as_it_happened(shop: Session, clock: ManualClock) -> None:
    chance = random.Random(7)
    sampler = Sampler(shop)
    emitted = 0
    for _ in range(30):
        match chance.choice(("emit", "emit", "work", "pass", "sample")):
            case "emit":
                number = chance.randint(1, 4)
                emitted += number
                emit(shop, number, fails=chance.choice([0, 0, 1]))
            case "work":
                work(shop)
            case "pass":
                clock.advance(seconds=chance.choice([1, 40]))
            case _:
                sampler.sample()
    for _ in range(2):  # what fails is done at the second attempt
        clock.advance(seconds=60)
        work(shop)
    sampler.sample()

    minutes = sampler.series(minutes=1440).minutes
    assert sum(each.came for each in minutes) == emitted
    assert sum(each.done for each in minutes) == 2 * emitted


def test_other_namespaces_are_not_counted(shop: Session, open_session: Open) -> None:
    there = open_session(namespace="elsewhere")
    sampler = Sampler(shop)
    emit(there, 3)
    work(there)
    sampler.sample()

    assert rates(sampler.series().minutes) == [(0, 0, 0)]


def test_users_of_one_store_share_a_sampler_that_goes_on_until_the_last(
    shop: Session, open_session: Open
) -> None:
    other, there = open_session(), open_session(namespace="elsewhere")
    with ExitStack() as stack:
        first = stack.enter_context(running_sampler(shop))
        assert stack.enter_context(running_sampler(there)) is not first
        with running_sampler(other) as second:
            assert second is first
        shop.close()
        first.sample()  # nobody is left to read through
        with running_sampler(other):
            emit(other, 1)
            first.sample()
            assert first.series().minutes[-1].came == 1
    with running_sampler(other) as anew:
        assert anew is not first
