"""Events that cross from one store to another, through a topic and through a bucket."""

from __future__ import annotations

import pytest

from ontologia.clock import from_text
from ontologia.queues import DomainEvent, StoreEventQueue
from ontologia.relay import REFUSED, Intake, Relay
from ontologia.relay import relay as relaying
from ontologia.runtime.session import core_of
from tests.relay.world import (
    EMPTIED,
    FILLED,
    BarrelEmptied,
    carry,
    emit,
    ids,
    send_without_ack,
    stored,
)


@pytest.mark.req("NEW-120", "NEW-122")
def test_an_event_crosses_with_all_that_belongs_to_it(regions, place):
    here, there = regions
    emit(here, 1, priority=7)
    parent = stored(here)[0]
    StoreEventQueue(here).enqueue(
        DomainEvent(
            "barrel.sold",
            {"to": "Zoë", "sum": 12.5, "parts": [None, True]},
            "sold-1",
            from_text("2026-01-02T03:04:05.000006+00:00"),
            tenant_id="t1",
            correlation_id="c1",
            causation_id=parent.id,
            root_event_id=parent.id,
            chain_depth=3,
        )
    )

    intake = carry(here, place, there)

    assert (intake.stored, intake.known, intake.refused) == (2, 0, 0)
    for sent, found in zip(stored(here), stored(there), strict=True):
        assert found == sent._replace(
            created_at=found.created_at,
            source=f"intake:{intake._source.uri}",
            occurred_at=sent.occurred_at or sent.created_at,
        )


@pytest.mark.req("NEW-121")
def test_a_chain_stays_in_order_whatever_its_priorities(regions, place, monkeypatch):
    monkeypatch.setattr(relaying, "_BATCH", 4)
    here, there = regions
    [first, second] = emit(here, 0, 0)
    for number in range(1, 10):
        emit(here, number, root_event_id=first, priority=100 + 50 * (number % 3))
        emit(here, number, root_event_id=second, priority=100 - 50 * (number % 3))

    Relay(here, place).run_until_empty()
    Intake(there, place).run_until_empty()

    if place.startswith("kafka"):  # a bucket has no order but that of the ids
        for root in (first, second):
            sent = [row.payload for row in stored(here) if row.root_event_id == root]
            assert [row.payload for row in stored(there) if row.root_event_id == root] == sent
    assert set(ids(there)) == set(ids(here))


@pytest.mark.req("NEW-120")
def test_only_the_types_that_were_asked_for_are_sent(regions, place):
    here, there = regions
    emit(here, 1)
    here.event_store.enqueue(BarrelEmptied(number=2), "shop")

    relay = Relay(here, place, types=[EMPTIED])
    assert relay.lag() == 1
    relay.run_until_empty()
    Intake(there, place).run_until_empty()

    assert [row.type for row in stored(there)] == [EMPTIED]
    assert relay.lag() == 0


@pytest.mark.req("NEW-122")
def test_a_message_that_comes_twice_is_one_event(regions, place):
    here, there = regions
    sent = emit(here, 1, 2, 3)
    send_without_ack(here, place)
    Intake(there, place).run_until_empty()

    again = carry(here, place, there)

    assert sorted(ids(there)) == sorted(sent)
    # A bucket has the same objects as before; a topic has each message twice.
    assert (again.stored, again.known, again.refused) == (0, 3 if "kafka" in place else 0, 0)


@pytest.mark.req("NEW-122")
def test_an_intake_goes_on_after_what_it_has_stored(regions, place):
    here, there = regions
    emit(here, 1, 2)
    carry(here, place, there)
    emit(here, 3)
    Relay(here, place).run_until_empty()

    intake = Intake(there, place)
    assert intake.lag() == 1
    intake.run_until_empty()

    assert (intake.stored, intake.known, intake.lag()) == (1, 0, 0)


@pytest.mark.req("NEW-123")
def test_what_came_from_a_target_is_not_sent_back_to_it(regions, place):
    here, there = regions
    emit(here, 1)
    carry(here, place, there)
    [own] = emit(there, 2)

    back = Relay(there, place)
    back.run_until_empty()
    intake = Intake(here, place)
    intake.run_until_empty()

    assert (intake.stored, intake.known) == (1, 1)  # its own has come home, once
    assert len(ids(here)) == 2
    assert own in ids(here)
    assert back.lag() == 0


@pytest.mark.req("NEW-123")
def test_an_event_that_comes_home_is_known_though_it_is_collected(regions, place, clock):
    here, _ = regions
    emit(here, 1)
    Relay(here, place).run_until_empty()
    clock.advance(seconds=10)
    assert here.event_store.cleanup_events("shop", clock.now()) == 1

    intake = Intake(here, place)
    intake.run_until_empty()

    assert (intake.stored, intake.known) == (0, 1)
    assert stored(here) == []


@pytest.mark.req("NEW-123")
def test_an_event_that_comes_home_by_another_way_is_known(regions, topic, s3_uri):
    here, there = regions
    emit(here, 1)
    carry(here, topic, there)

    home = carry(there, s3_uri, here)

    assert (home.stored, home.known) == (0, 1)


@pytest.mark.req("NEW-123")
def test_two_stores_that_answer_each_other_stop_at_the_chain_limit(tmp_path, open_session, s3_uri):
    """Each answers an event of the other; the depth crosses, and ends it."""
    limit = {"max_event_chain_depth": 3}
    here, there = (
        open_session(uri=f"sqlite:///{tmp_path}/{name}.db", namespace="shop", settings=limit)
        for name in ("a", "b")
    )
    emit(here, 1)

    def answer(session):
        """Emit a child of each event that has none, as a handler would."""
        rows = stored(session, FILLED)
        answered = {row.causation_id for row in rows}
        core = core_of(session)
        for row in rows:
            if row.id not in answered and row.source and row.source.startswith("intake:"):
                child = core.store.events.log.copy(row)._replace(
                    root_event_id=row.root_event_id,
                    chain_depth=row.chain_depth + 1,
                    causation_id=row.id,
                    source="answer",
                )
                with core.store.events.transaction() as tx:
                    core.store.events.log.add(tx, [child])

    for _ in range(4):
        carry(here, s3_uri, there)
        answer(there)
        carry(there, s3_uri, here)
        answer(here)

    depths = {row.chain_depth for row in [*stored(here, FILLED), *stored(there, FILLED)]}
    assert max(depths) == 4  # what no handler could have emitted is refused where it arrives
    refusals = [*stored(here, REFUSED), *stored(there, REFUSED)]
    assert any(b"max_event_chain_depth is 3" in bytes(str(r.payload), "utf-8") for r in refusals)


@pytest.mark.req("NEW-122")
def test_an_id_that_another_namespace_has_is_refused_and_told(regions, open_session, place):
    here, there = regions
    sent = emit(here, 1, 2)
    other = open_session(uri=core_of(there).store.uri, namespace="elsewhere")
    emit(other, 9, id=sent[0])

    intake = carry(here, place, there)

    assert ids(there) == [sent[1]]
    assert (intake.stored, intake.refused) == (1, 1)
    [told] = stored(there, REFUSED)
    assert "namespace 'elsewhere' of this store has an event with this id" in str(told.payload)
