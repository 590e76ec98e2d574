"""What finished events cost those who claim: nothing, and an idle claim takes no lock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from bench import statements
from bench.measure import Count, Figure, Ratio, progress, same, seconds
from bench.orders import NAMESPACE, NOTHING, TYPE, announce, build, open_orders
from ontologia import Session
from ontologia.store.events.leases import Done
from ontologia.store.rows import Claim

_FINISHED = 300_000
_SAMPLE = 500
_LIMIT = 100
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
        yield _claiming(bare, ours)
    yield _idle(many)


def _claiming(bare: Session, ours: Session) -> Ratio:
    title = f"claim of {_LIMIT}, {_FINISHED:,} finished (ours) beside none (bare)"
    figure = Ratio(title, 1.5)
    for number in range(_ROUNDS + 1):
        times = _claim(bare), _claim(ours)
        if number:
            figure.bare.append(times[0])
            figure.ours.append(times[1])
    return figure


def _claim(session: Session) -> float:
    """Time one claim of new events; they are acknowledged after the clock has stopped."""
    events = session.event_store
    announce(session, _LIMIT)
    taken: list[Claim] = []
    elapsed = seconds(_claiming_of(session, taken))
    same("claims", _LIMIT, len(taken))
    lost, _ = events.claims.settle([Done(claim) for claim in taken])
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
                limit=_LIMIT,
                lease_ms=_LEASE_MS,
                policy=events.policy,
            )
        )

    return work


def _idle(many: Path) -> Count:
    with statements.counted() as ran, open_orders(many) as session:

        def claim() -> int:
            events = session.event_store
            return len(
                events.claim(NAMESPACE, NOTHING, session.session_id, [TYPE], _LIMIT, _LEASE_MS)
            )

        announce(session, 1)
        same("claimed", 1, claim())
        writes = _writes(ran)
        assert writes  # otherwise they are called something else
        same("claimed", 0, claim())
        return Count(
            f"write transactions of an idle claim, {_FINISHED:,} finished", _writes(ran) - writes, 0
        )


def _writes(ran: dict[str, int]) -> int:
    return sum(number for text, number in ran.items() if text.startswith("BEGIN IMMEDIATE"))
