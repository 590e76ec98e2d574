"""The queue as it was says the same as the views of that moment said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from ontologia import Entity, Event, Field, HandlerContext, Session, on_event
from ontologia.errors import InvalidValueError, NotFoundError
from ontologia.runtime.operator import Operator
from ontologia.runtime.views.events import EventFilter, event, newest_events
from ontologia.runtime.views.handlers import handlers
from ontologia.runtime.views.paging import Count
from ontologia.runtime.views.past import (
    LIMITS,
    commits_around,
    event_at,
    newest_events_at,
    overview_at,
)
from ontologia.store.events.operations import Selection
from ontologia.testing import ManualClock
from ontologia_conformance.tiers import samples

Open = Callable[..., Session]
NAMES = ("bill", "ship")
LEASE_MS = 30_000
OVER = ("acked", "dead_lettered")


class Item(Entity):
    id: Field[str]


class ItemPacked(Event):
    number: Field[int]


PACKED = ItemPacked.__event_type__


@pytest.fixture
def shop(open_session: Open) -> Session:
    return open_session(settings={"event_max_attempts": 3, "event_backoff_base_ms": 2_000})


@dataclass
class Live:
    """How a consumer stood to an event, when that was now."""

    state: str
    attempts: int
    error: str | None
    claimed_at: datetime | None
    started_at: datetime | None


class Story:
    """What two consumers do to some events, and what the views say after each step."""

    def __init__(self, session: Session, clock: ManualClock, random: Random) -> None:
        self.session, self.clock, self.random = session, clock, random
        self.store = session.event_store
        self.held: list[tuple[str, str]] = []
        self.moments: list[tuple[datetime, dict[tuple[str, str], Live]]] = []
        self.retried: dict[tuple[str, str], list[datetime]] = {}
        self.count = 0
        for name in NAMES:
            self.claim(name)

    def step(self) -> None:
        self.clock.advance(seconds=self.random.choice([0.5, 1, 3, 8]))
        does = [self.emit, self.emit, self.claim, self.claim, self.begin, self.fail, self.fail]
        does += [self.ack, self.ack, self.give_back, self.wait, self.retry]
        self.random.choice(does)()
        self.moments.append((self.clock.now(), self.live()))

    def emit(self) -> None:
        self.count += 1
        self.session.ensure(Item(id=str(self.count)))
        self.session.commit(
            event=ItemPacked(number=self.count, priority=self.random.choice([1, 9]))
        )

    def claim(self, name: str | None = None) -> None:
        name = name or self.random.choice(NAMES)
        limit = self.random.choice([1, 2])
        for each in self.store.claim("default", name, "s", [PACKED], limit, LEASE_MS):
            place = (name, str(each.id))
            self.held = [known for known in self.held if known != place] + [place]
            if self.random.random() < 0.8:
                assert self.store.start(*place, lease_ms=LEASE_MS)

    def _held(self) -> tuple[str, str] | None:
        return self.random.choice(self.held) if self.held else None

    def begin(self) -> None:
        if place := self._held():
            self.store.start(*place, lease_ms=LEASE_MS)

    def fail(self) -> None:
        if place := self._held():
            self.store.start(*place, lease_ms=LEASE_MS)
            self.store.release(*place, error=f"error {len(self.moments)}")
            self.held.remove(place)

    def ack(self) -> None:
        if place := self._held():
            self.store.ack(*place)
            self.held.remove(place)

    def give_back(self) -> None:
        if place := self._held():
            self.store.abandon(*place)
            self.held.remove(place)

    def wait(self) -> None:
        self.clock.advance(seconds=self.random.choice([5, 40]))

    def retry(self) -> None:
        dead = [place for place, live in self.live().items() if live.state == "dead_lettered"]
        if dead:
            event_id, handler = self.random.choice(dead)
            Operator(self.session, "ada").retry(Selection(event_id=event_id, handler=handler))
            self.retried.setdefault((event_id, handler), []).append(self.clock.now())

    def live(self) -> dict[tuple[str, str], Live]:
        found: dict[tuple[str, str], Live] = {}
        for row in newest_events(self.session, EventFilter(type=PACKED), limit=200).rows:
            detail = event(self.session, row.event_id)
            assert detail is not None
            for name in NAMES:
                found[row.event_id, name] = Live("waiting", 0, None, None, None)
            for claim in detail.claims:
                state = claim.state if claim.state in (*OVER, "claimed") else "waiting"
                found[row.event_id, claim.handler] = Live(
                    state, claim.attempts, claim.last_error, claim.claimed_at, claim.started_at
                )
        return found

    def allowed(self, place: tuple[str, str], at: datetime, then: Live, now: Live) -> set[str]:
        """What the view of the past may say; more than one state where `LIMITS` says so."""
        states = {then.state}
        claimed_again = now.claimed_at != then.claimed_at
        if then.state == "claimed" and claimed_again:
            states |= {"waiting"}  # the attempt alone is known, from its last beginning
        if then.state == "waiting" and claimed_again and then.started_at is not None:
            states |= {"claimed"}  # its lease had run out
        retries = self.retried.get(place, [])
        if then.state == "waiting" and claimed_again and any(each <= at for each in retries):
            states |= {"dead_lettered"}  # the time of the retry is not known any more
        if then.state == "dead_lettered" and sum(each > at for each in retries) > 1:
            states |= {"waiting"}
        return states


@pytest.mark.req("NEW-240")
@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(samples(30)))
def test_the_past_says_what_the_present_said(shop: Session, clock: ManualClock, seed: int) -> None:
    story = Story(shop, clock, Random(seed))
    for _ in range(60):
        story.step()
    now = story.moments[-1][1]

    certain = compared = 0
    for at, live in story.moments:
        rows = newest_events_at(shop, EventFilter(type=PACKED), as_of=at, limit=200).found.rows
        then = {(row.event_id, claim.handler): claim for row in rows for claim in row.claims}

        assert then.keys() == live.keys()
        for place, was in live.items():
            allowed = story.allowed(place, at, was, now[place])
            assert then[place].state in allowed, (at, place, was, then[place], now[place])
            compared += 1
            if len(allowed) == 1 and place not in story.retried:
                certain += 1
                said = (then[place].attempts, then[place].last_error)
                assert said == (was.attempts, was.error), (at, place, was, now[place])
    assert certain > compared / 2


@pytest.mark.req("NEW-240")
@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(samples(6)))
def test_the_overview_of_the_past_counts_what_its_events_say(
    shop: Session, clock: ManualClock, seed: int
) -> None:
    story = Story(shop, clock, Random(100 + seed))
    for _ in range(40):
        story.step()

    for at, _ in story.moments[::3]:
        rows = newest_events_at(shop, as_of=at, limit=200).found.rows
        claims = [claim for row in rows for claim in row.claims]
        overview = overview_at(shop, at).found

        assert overview.searched_to is None
        assert {each.name for each in overview.handlers} == set(NAMES)
        for each in overview.handlers:
            mine = [claim.state for claim in claims if claim.handler == each.name]
            assert each.waiting == Count(mine.count("waiting"))
            assert each.claimed == Count(mine.count("claimed"))
            assert each.dead == Count(mine.count("dead_lettered"))
            failing = [
                claim
                for claim in claims
                if claim.handler == each.name and claim.attempts and claim.state not in OVER
            ]
            assert each.failing == Count(len(failing))


def claim(session: Session, name: str = "ship") -> list[str]:
    found = session.event_store.claim("default", name, "s", [PACKED], 10, LEASE_MS)
    return [str(each.id) for each in found]


@pytest.fixture
def packed(shop: Session, clock: ManualClock) -> tuple[str, list[datetime]]:
    """One event, and the instants after: emitted, claimed and begun, failed, tried again, done."""
    claim(shop)
    times: list[datetime] = []

    def tick() -> None:
        times.append(clock.now())
        clock.advance(seconds=10)

    shop.ensure(Item(id="1"))
    shop.commit(event=ItemPacked(number=1))
    tick()
    [event_id] = claim(shop)
    shop.event_store.start("ship", event_id, lease_ms=LEASE_MS)
    tick()
    shop.event_store.release("ship", event_id, error="no box")
    tick()
    claim(shop)
    shop.event_store.start("ship", event_id, lease_ms=LEASE_MS)
    tick()
    shop.event_store.ack("ship", event_id)
    tick()
    return event_id, times


@pytest.mark.req("NEW-240")
def test_one_event_is_shown_as_it_was(shop: Session, packed: tuple[str, list[datetime]]) -> None:
    event_id, times = packed

    found = [event_at(shop, event_id, at) for at in times]

    details = [each.found for each in found if each is not None]
    claims = [each.claims[0] for each in details]
    assert [each.state for each in claims] == [
        *("waiting", "claimed", "waiting", "claimed", "acked"),
    ]
    assert [each.attempts for each in claims] == [0, 0, 1, 1, 1]
    assert [each.last_error for each in claims] == [None, None, *["no box"] * 3]
    assert [each.started_at for each in claims] == [None, times[1], times[1], times[3], times[3]]
    assert [each.ended_at for each in claims] == [None] * 4 + [times[4]]
    assert [len(each.attempts) for each in details] == [0, 0, 1, 1, 1]
    assert found[0] is not None
    assert found[0].limits == LIMITS
    assert found[0].commit_id == 1
    assert event_at(shop, event_id, times[0] - timedelta(seconds=1)) is None
    assert event_at(shop, "unknown", times[0]) is None


def fail(session: Session, event_id: str) -> None:
    claim(session)
    session.event_store.start("ship", event_id, lease_ms=LEASE_MS)
    session.event_store.release("ship", event_id, error="no box")


@pytest.mark.req("NEW-240")
def test_a_dead_letter_is_dead_until_it_was_retried(shop: Session, clock: ManualClock) -> None:
    claim(shop)
    shop.commit(event=ItemPacked(number=1))
    [event_id] = [row.event_id for row in newest_events(shop).rows]
    moments: dict[str, datetime] = {}

    def then(what: str) -> None:
        moments[what] = clock.now()
        clock.advance(seconds=60)

    for number in (1, 2, 3):
        fail(shop, event_id)
        then(f"failure {number}")
    Operator(shop, "ada").retry(Selection(handler="ship"))
    then("retry")

    def found() -> dict[str, tuple[str, int]]:
        shown = {what: event_at(shop, event_id, at) for what, at in moments.items()}
        claims = {what: each.found.claims[0] for what, each in shown.items() if each is not None}
        return {what: (each.state, each.attempts) for what, each in claims.items()}

    before = {
        "failure 1": ("waiting", 1),
        "failure 2": ("waiting", 2),
        "failure 3": ("dead_lettered", 3),
    }
    assert found() == {**before, "retry": ("waiting", 0)}
    for number in (1, 2):
        fail(shop, event_id)
        then(f"failure {number} again")

    again = {"failure 1 again": ("waiting", 1), "failure 2 again": ("waiting", 2)}
    # Its time is not known any more.
    assert found() == {**before, "retry": ("dead_lettered", 3), **again}


@pytest.mark.req("NEW-240")
def test_an_attempt_is_over_when_its_lease_ran_out(shop: Session, clock: ManualClock) -> None:
    """Noticed later, by a claim of another event."""
    claim(shop)
    shop.commit(event=ItemPacked(number=1))
    [event_id] = claim(shop)
    shop.event_store.start("ship", event_id, lease_ms=LEASE_MS)
    clock.advance(seconds=LEASE_MS / 1_000 - 1)
    held = clock.now()
    clock.advance(seconds=2)
    lapsed = clock.now()
    clock.advance(seconds=60)
    shop.commit(event=ItemPacked(number=2, priority=1_000))
    [other] = shop.event_store.claim("default", "ship", "s", [PACKED], 1, LEASE_MS)
    assert other.id != event_id

    states = [event_at(shop, event_id, at) for at in (held, lapsed, clock.now())]

    assert [each and each.found.claims[0].state for each in states] == [
        *("claimed", "waiting", "waiting"),
    ]
    assert [each and each.found.claims[0].attempts for each in states] == [0, 0, 1]


@pytest.mark.req("NEW-240")
def test_an_event_has_the_commits_that_were_there(shop: Session, clock: ManualClock) -> None:
    @on_event(ItemPacked, name="ship")
    def ship(ctx: HandlerContext[ItemPacked]) -> None:
        ctx.ensure(Item(id="shipped"))
        ctx.commit()

    shop.ensure(Item(id="1"))
    shop.commit(event=ItemPacked(number=1))
    clock.advance(seconds=1)
    shop.run([ship], max_iterations=1)
    [row] = newest_events(shop).rows

    commits = [event_at(shop, row.event_id, number) for number in (1, 2)]

    assert [each and each.found.commits for each in commits] == [(), (2,)]


@pytest.mark.req("NEW-240")
def test_the_past_is_named_by_a_commit_as_well(
    shop: Session, packed: tuple[str, list[datetime]], clock: ManualClock
) -> None:
    shop.ensure(Item(id="2"))
    shop.commit(event=ItemPacked(number=2))

    first, second = (newest_events_at(shop, as_of=each) for each in (1, 2))

    assert (first.as_of, first.commit_id) == (packed[1][0], 1)
    assert [row.event_id for row in first.found.rows] == [packed[0]]
    assert [claim.state for claim in first.found.rows[0].claims] == ["waiting"]
    assert len(second.found.rows) == 2
    assert overview_at(shop, 2).found.handlers[0].waiting == handlers(shop)[0].waiting == Count(1)
    with pytest.raises(NotFoundError, match="no commit 3"):
        overview_at(shop, 3)


@pytest.mark.req("NEW-240")
def test_pages_of_the_past_go_on_where_the_last_one_ended(
    shop: Session, clock: ManualClock
) -> None:
    claim(shop)
    for number in range(5):
        shop.commit(event=ItemPacked(number=number))
    then = clock.now() + timedelta(seconds=1)
    clock.advance(seconds=5)
    shop.commit(event=ItemPacked(number=5))

    ids: list[str] = []
    before = None
    for _ in range(3):
        page = newest_events_at(shop, as_of=then, before=before, limit=2).found
        ids += (row.event_id for row in page.rows)
        before = page.next

    assert before is None
    assert ids == [row.event_id for row in newest_events(shop).rows][1:]
    with pytest.raises(InvalidValueError, match="cursor"):
        newest_events_at(shop, as_of=then, before="x")


@pytest.mark.req("NEW-240")
def test_the_past_is_filtered_by_what_was_then(
    shop: Session, packed: tuple[str, list[datetime]]
) -> None:
    _, times = packed

    def found(at: datetime, **which: str) -> int:
        return len(newest_events_at(shop, EventFilter(**which), as_of=at).found.rows)

    assert found(times[1], status="claimed") == 1
    assert found(times[1], status="acked") == 0
    assert found(times[4], status="acked", handler="ship") == 1
    assert found(times[2], status="pending", handler="ship") == 1
    assert found(times[2], handler="nobody") == 0
    number = (("number", "1"),)
    numbered = EventFilter(type=PACKED, payload=number)
    assert len(newest_events_at(shop, numbered, as_of=times[0]).found.rows) == 1


@pytest.mark.req("NEW-240")
def test_what_waits_since_then_counts_though_the_search_ends_early(
    shop: Session, clock: ManualClock
) -> None:
    claim(shop)
    for number in range(3):
        shop.commit(event=ItemPacked(number=number))
    for event_id in claim(shop):
        shop.event_store.ack("ship", event_id)
    shop.commit(event=ItemPacked(number=4))
    clock.advance(seconds=1)

    cut = overview_at(shop, clock.now(), most=2).found

    assert cut.searched_to is not None
    assert cut.handlers[0].waiting == Count(1, exact=False)
    whole = overview_at(shop, clock.now()).found
    assert (whole.searched_to, whole.handlers[0].waiting) == (None, Count(1))


@pytest.mark.req("NEW-240")
def test_a_search_of_the_past_says_how_far_it_came(
    shop: Session, packed: tuple[str, list[datetime]], clock: ManualClock
) -> None:
    for number in range(600):
        shop.ensure(Item(id=f"i{number}"))
        shop.commit(event=ItemPacked(number=number))
    clock.advance(seconds=1)
    nothing = EventFilter(type=PACKED, payload=(("number", "-1"),))

    page = newest_events_at(shop, nothing, as_of=clock.now(), seconds=0).found

    assert page.rows == ()
    assert page.searched_to is not None
    rest = newest_events_at(shop, nothing, as_of=clock.now(), before=page.next).found
    assert (rest.rows, rest.next, rest.searched_to) == ((), None, None)


@pytest.mark.req("NEW-240")
def test_a_commit_knows_the_ones_around_it(shop: Session, clock: ManualClock) -> None:
    times: list[datetime] = []
    for number in range(3):
        shop.ensure(Item(id=str(number)))
        shop.commit()
        times.append(clock.now())
        clock.advance(seconds=1)

    first, middle, last = (commits_around(shop, each) for each in (1, 2, 3))

    assert (first.before, first.after, first.after_at) == (None, 2, times[1])
    assert (middle.created_at, middle.before_at, middle.after_at) == (times[1], times[0], times[2])
    assert (last.before, last.after, last.after_at, last.head) == (2, None, None, 3)
    for number in (0, 4, -1, 2**63):
        with pytest.raises(NotFoundError, match="The last one is 3"):
            commits_around(shop, number)


@pytest.mark.req("NEW-240")
def test_before_everything_there_was_nothing(
    shop: Session, packed: tuple[str, list[datetime]]
) -> None:
    long_ago = datetime(1990, 1, 1, tzinfo=UTC)

    assert newest_events_at(shop, as_of=long_ago).found.rows == ()
    assert newest_events_at(shop, as_of=long_ago).commit_id == 0
    [ship] = overview_at(shop, long_ago).found.handlers
    assert (ship.waiting, ship.claimed, ship.dead) == (Count(0), Count(0), Count(0))
