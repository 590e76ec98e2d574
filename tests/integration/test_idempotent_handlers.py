"""`check_idempotent`: it finds the handlers that end otherwise when they are interrupted."""

from __future__ import annotations

import logging
import tempfile
from uuid import uuid4

import pytest

from ontologia import Discard, Entity, Event, Field, Relation, Retry, on_event
from ontologia.errors import HandlerError, StoreOpenError
from ontologia.testing import check_idempotent


class Loaf(Entity):
    sku: Field[str] = Field(primary_key=True)
    count: Field[int]


class LoafBill(Entity):
    order_id: Field[str] = Field(primary_key=True)
    note: Field[str] = Field(default="")


class LoafOf(Relation[LoafBill, Loaf]):
    pieces: Field[int]


class LoafSold(Event):
    order_id: Field[str]


class LoafBilled(Event):
    order_id: Field[str]


SOLD = LoafSold(order_id="o1")
STOCK = [Loaf(sku="rye", count=9)]
outbox: list[str] = []


def bill(ctx):
    ctx.ensure(LoafBill(order_id=ctx.event.order_id))
    ctx.commit()
    ctx.emit(LoafBilled(order_id=ctx.event.order_id))


async def bill_later(ctx):
    bill(ctx)


class Biller:
    def __call__(self, ctx):
        bill(ctx)

    @on_event(LoafSold, name="loaf.method")
    def method(self, ctx):
        bill(ctx)


def handler(function, name="loaf.handler"):
    return on_event(LoafSold, name=name)(function)


def failure(function, **options):
    """What check_idempotent has against a function."""
    with pytest.raises(AssertionError) as caught:
        check_idempotent(handler(function), SOLD, **options)
    return str(caught.value)


# -- handlers that are fine -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "good",
    [handler(bill, "loaf.def"), handler(bill_later, "loaf.async"), handler(Biller(), "loaf.object"),
     Biller().method],
    ids=["def", "async def", "object", "method"],
)  # fmt: skip
def test_a_handler_that_states_facts_passes(good):
    check_idempotent(good, SOLD)


def test_it_is_disturbed_at_every_boundary_in_four_ways_and_around_its_end_in_two():
    beginnings, attempts = [], []

    def watched(ctx):
        attempts.append(ctx.attempt)
        bill(ctx)

    check_idempotent(handler(watched), SOLD, given=beginnings.append)

    assert len(beginnings) == 2 + 4 + 4 + 2  # undisturbed, ctx.commit, ctx.emit, the end
    assert attempts.count(1) == 12
    assert attempts.count(2) == 9  # all but the undisturbed, and the crash after the end


def test_a_handler_that_gives_up_an_event_passes():
    def give_up(ctx):
        bill(ctx)
        raise Discard("no such order")

    check_idempotent(handler(give_up), SOLD)


def test_a_handler_that_asks_for_another_attempt_passes():
    def hesitant(ctx):
        bill(ctx)
        if ctx.attempt == 1:
            raise Retry("not yet", after=3600)

    check_idempotent(handler(hesitant), SOLD)


def test_a_commit_whose_failure_a_handler_swallows_is_tried_again():
    def careless(ctx):
        ctx.ensure(LoafBill(order_id=ctx.event.order_id))
        try:
            ctx.commit()
        except Exception:  # noqa: BLE001 - that is what it is about
            logging.getLogger("loaf").info("never mind")

    check_idempotent(handler(careless), SOLD)


def test_nothing_is_written_after_a_crash():
    def stubborn(ctx):
        ctx.ensure(LoafBill(order_id="o1"))
        try:
            ctx.commit()
        except Exception:
            raise
        except BaseException:  # noqa: BLE001 - it is that stubborn
            ctx.ensure(LoafBill(order_id="scar"))
            ctx.commit(event=LoafBilled(order_id="scar"))

    check_idempotent(handler(stubborn), SOLD)


def test_events_of_the_type_it_handles_are_not_handed_to_it():
    handed = set()

    def again(ctx):
        handed.add(ctx.event.order_id)
        ctx.commit(event=LoafSold(order_id="urgent", priority=500), dedup_key="urgent")
        ctx.emit(LoafSold(order_id="later"), delay=1)

    check_idempotent(handler(again), SOLD)

    assert handed == {"o1"}


# -- handlers that are not ------------------------------------------------------------------------


def take_one(ctx):
    loaf = ctx.query().entities(Loaf).first()
    ctx.ensure(Loaf(sku=loaf.sku, count=loaf.count - 1))
    ctx.commit()


def test_a_handler_that_counts_is_found_with_the_place_and_the_difference():
    assert failure(take_one, given=STOCK) == (
        "loaf.handler is not idempotent: tried again, it ends otherwise than undisturbed.\n"
        "  After a crash after the 1st ctx.commit\n"
        "  After an error after the 1st ctx.commit\n"
        "  After a crash before the acknowledgement\n"
        "    Loaf rye: count is 7; undisturbed 8"
    )


def test_a_coroutine_that_counts_is_found():
    async def take_one_later(ctx):
        take_one(ctx)

    assert "After a crash after the 1st ctx.commit" in failure(take_one_later, given=STOCK)


def test_only_the_second_commit_is_named_where_only_that_is_wrong():
    def two_steps(ctx):
        bill(ctx)
        take_one(ctx)

    found = failure(two_steps, given=STOCK)

    assert "After a crash after the 2nd ctx.commit" in found
    assert "before the 2nd ctx.commit" not in found
    assert "the 1st ctx.commit" not in found


def test_objects_and_relations_that_come_and_go_are_told():
    def differently(ctx):
        if ctx.attempt > 1:
            ctx.ensure(LoafOf(left_key="o1", right_key="rye", pieces=1))
            ctx.delete(Loaf(sku="rye", count=0))
        ctx.commit()

    found = failure(differently, given=STOCK)

    assert "LoafOf o1:rye: is there; undisturbed it is not" in found
    assert "Loaf rye: is not there; undisturbed it is" in found


def test_an_event_stored_with_a_commit_is_announced_twice_unless_it_has_a_key():
    def announce(ctx):
        ctx.commit(event=LoafBilled(order_id="o1"))

    def announce_once(ctx):
        ctx.commit(event=LoafBilled(order_id="o1"), dedup_key="o1")

    assert 'event loaf.billed {"order_id":"o1"}: announced twice; undisturbed once' in failure(
        announce
    )
    check_idempotent(handler(announce_once), SOLD)


def test_what_is_deferred_is_compared_and_a_boundary_of_its_own():
    def remind(ctx):
        ctx.session.defer(LoafBilled(order_id="o1"), delay=10)

    found = failure(remind)

    assert "After a crash after the 1st session.defer" in found
    assert "After a crash before the 1st session.defer" not in found
    assert "announced twice; undisturbed once" in found


def test_an_emit_whose_failure_a_handler_swallows_is_found():
    def careless(ctx):
        try:
            ctx.emit(LoafBilled(order_id="o1"))
        except Exception:  # noqa: BLE001 - that is what it is about
            logging.getLogger("loaf").info("never mind")

    found = failure(careless)

    assert "After an error before the 1st ctx.emit" in found
    assert "announced never; undisturbed once" in found
    assert "a crash" not in found


def test_an_event_that_ends_as_a_dead_letter_is_found():
    def refuse(ctx):
        if ctx.attempt > 1:
            raise Discard("I have seen this before")
        ctx.commit()

    found = failure(refuse)

    assert "the event was discarded: I have seen this before; undisturbed it was handled" in found


# -- effects --------------------------------------------------------------------------------------


def clear(_session):
    outbox.clear()


def test_an_effect_that_happens_again_is_found():
    def send(ctx):
        outbox.append(f"bill for {ctx.event.order_id}")
        ctx.commit()

    found = failure(send, given=clear, effects=lambda: outbox)

    assert "After a crash before the 1st ctx.commit" in found
    sent = "'bill for o1'"
    assert f"effects: [{sent}, {sent}]; undisturbed [{sent}]" in found


def test_an_effect_with_a_key_passes():
    def send_once(ctx):
        if ctx.event.id not in outbox:
            outbox.append(ctx.event.id)
        ctx.commit()

    check_idempotent(handler(send_once), SOLD, given=clear, effects=lambda: outbox)


def test_effects_that_are_not_set_back_are_told_apart_from_a_disturbance():
    def send(ctx):
        outbox.append("bill")

    found = failure(send, effects=lambda: outbox)

    assert "ended in two ways without being disturbed" in found
    assert "effects that given= does not set back" in found


# -- handlers that cannot be judged -----------------------------------------------------------------


def test_a_value_made_anew_at_each_run_is_found_without_any_disturbance():
    def fresh(ctx):
        ctx.ensure(LoafBill(order_id="o1", note=str(uuid4())))
        ctx.commit()

    found = failure(fresh)

    assert "ended in two ways without being disturbed" in found
    assert "LoafBill o1: note is " in found


def test_a_handler_that_fails_by_itself_is_told_apart():
    def broken(ctx):
        raise KeyError("rye")

    found = failure(broken)

    assert found.startswith("loaf.handler was not disturbed, and yet its event failed for good: ")
    assert "KeyError: 'rye'" in found


def test_what_cannot_be_checked_is_refused():
    with pytest.raises(HandlerError, match="is no handler"):
        check_idempotent(bill_later.__call__, SOLD)
    with pytest.raises(HandlerError, match=r"loaf.handler handles LoafSold, got LoafBilled"):
        check_idempotent(handler(lambda ctx: None), LoafBilled(order_id="o1"))
    with pytest.raises(StoreOpenError, match="does not outlive its session"):
        check_idempotent(handler(lambda ctx: None), SOLD, store=lambda: "sqlite://")


# -- where it runs --------------------------------------------------------------------------------


def test_nothing_is_left_behind_neither_files_nor_lines_in_a_log(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    check_idempotent(handler(lambda ctx: bill(ctx)), SOLD)

    assert list(tmp_path.iterdir()) == []
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []
    assert SOLD.id is None


@pytest.mark.thorough
def test_it_runs_on_any_store(place):
    kinds = ["sqlite", "postgres"]
    for kind in kinds:
        check_idempotent(handler(lambda ctx: bill(ctx)), SOLD, store=lambda kind=kind: place(kind))
        assert "count is 7; undisturbed 8" in failure(
            lambda ctx: take_one(ctx), given=STOCK, store=lambda kind=kind: place(kind)
        )
