"""Stored JSON was checked when it came in: it is read without being looked at for long numbers."""

from __future__ import annotations

import pytest

from ontologia import Entity, Event, Field, codec, on_event


class Pallet(Entity):
    id: Field[str] = Field(primary_key=True)
    data: Field[dict]
    label: Field[str] = Field(unique=True)


class PalletMoved(Event):
    pallet: Field[str]


def test_what_is_stored_is_decoded_once_and_by_the_quick_decoder(session, monkeypatch):
    def decode(text):
        pytest.fail(f"stored text was decoded as if it came from outside: {text!r}")

    monkeypatch.setattr(codec, "decode", decode)
    seen = []

    @on_event(PalletMoved, name="move")
    def move(ctx):
        pallet = ctx.one(Pallet, ctx.event.pallet)
        pallet.data["moved"] = True
        ctx.ensure(pallet)
        ctx.commit()
        seen.append(pallet.data)

    session.ensure(Pallet(id="p1", data={"weight": 2**63 - 1}, label="a"))
    first = session.commit(event=PalletMoved(pallet="p1"))
    session.run([move], max_iterations=1)
    session.update(Pallet, "p1", label="b")
    last = session.commit()

    assert seen == [{"weight": 2**63 - 1, "moved": True}]
    [change] = session.diff(first, last).updated
    assert change.fields["label"] == ("a", "b")
    [event] = session.event_store.list_events(session.namespace)
    assert session.event_store.inspect_event(event["id"])["payload"] == {"pallet": "p1"}
    assert session.why(Pallet, "p1")
    assert session.list_commits()
