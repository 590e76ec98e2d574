"""What finished events cost those who claim: nothing, and an idle claim takes no lock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from bench.goals import statements
from bench.goals.figures import Count, Figure, Ratio
from bench.measure import progress, same, seconds
from bench.orders import announce, build, open_orders
from bench.workload import NAMESPACE, NOTHING, TYPE
from ontologia import Session
from ontologia.store.events.leases import Done
from ontologia.store.rows import Claim

_FINISHED = 300_000
_SAMPLE = 500
LIMIT = 100
"""Events in a claim."""
_LEASE_MS = 30_000
_ROUNDS = 60


def figures(folder: Path) -> Iterator[Figure]:
    """Makes its stores in `folder`."""
    sample = build(folder / "sample.db", 10, handler=NOTHING, finished=_SAMPLE)
    with open_orders(sample) as session:
        same("broken rules", [], session.event_store.check())
    with progress(f"building {_FINISHED:,} finished events"):
        none = build(folder / "none.db", 0, handler=NOTHING)
        many = build(folder / "many.db", 0, handler=NOTHING, finished=_FINISHED)
    with open_orders(none) as bare, open_orders(many) as ours:
        yield claiming(bare, ours, _FINISHED, goal=1.5)
    yield _idle(many)


def claiming(bare: Session, ours: Session, finished: int, *, goal: float) -> Ratio:
    """Two stores with nothing to do: one has none, and the other this many finished events."""
    title = f"claim of {LIMIT}, {finished:,} finished (ours) beside none (bare)"
    figure = Ratio(title, goal)
    for number in range(_ROUNDS + 1):
        times = _announced_and_claimed(bare), _announced_and_claimed(ours)
        if number:
            figure.bare.append(times[0])
            figure.ours.append(times[1])
    return figure


def _announced_and_claimed(session: Session) -> float:
    announce(session, LIMIT)
    return claim(session)


def claim(session: Session) -> float:
    """Time one claim of events; they are acknowledged after the clock has stopped."""
    taken: list[Claim] = []
    elapsed = seconds(_claiming_of(session, taken))
    same("claims", LIMIT, len(taken))
    lost, _ = session.event_store.claims.settle([Done(claim) for claim in taken])
    same("lost", [], lost)
    return elapsed


def _claiming_of(session: Session, taken: list[Claim]) -> Callable[[], None]:
    """What the loop does: look, and claim."""
    events = session.event_store

    def work() -> None:
        consumer = events.consumers.register(NAMESPACE, NOTHING, [TYPE])
        assert consumer.id in events.claims.peek([consumer.id]).claimable
        taken.extend(
            events.claims.claim(
                consumer,
                [TYPE],
                session_id=session.session_id,
                limit=LIMIT,
                lease_ms=_LEASE_MS,
                policy=events.policy,
            )
        )

    return work


def _idle(many: Path) -> Count:
    with statements.counted() as ran, open_orders(many) as session:

        def claim_again() -> int:
            events = session.event_store
            return len(
                events.claim(NAMESPACE, NOTHING, session.session_id, [TYPE], LIMIT, _LEASE_MS)
            )

        announce(session, 1)
        same("claimed", 1, claim_again())
        writes = _writes(ran)
        assert writes  # otherwise they are called something else
        same("claimed", 0, claim_again())
        return Count(
            f"write transactions of an idle claim, {_FINISHED:,} finished", _writes(ran) - writes, 0
        )


def _writes(ran: dict[str, int]) -> int:
    return sum(number for text, number in ran.items() if text.startswith("BEGIN IMMEDIATE"))
