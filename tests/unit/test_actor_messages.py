"""Messages: four keys, JSON only, and nothing shared."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ontologia.actors import Actor, ActorLoop, ErrorData, Message
from ontologia.actors.adapter import invalid
from ontologia.errors import InvalidValueError
from tests.unit.actor_world import MEMORY, MemoryChanged, SetData, ear, of, run

GOOD = {"kind": "query", "type": "Memory.Get", "data": {}, "metadata": {"id": "1", "timestamp": 5}}


def _line(**changes):
    return json.dumps({**GOOD, **changes})


@pytest.mark.req("CQR-001")
@pytest.mark.parametrize("kind", ["command", "query", "event"])
def test_a_message_has_four_keys(kind):
    message = getattr(Message, kind)("Memory.Set", {"a": 1})

    assert list(json.loads(message.to_json())) == ["kind", "type", "data", "metadata"]
    assert message.kind == kind


@pytest.mark.req("CQR-001", "CQR-002", "CQR-003", "CQR-004")
@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"kind": "order"}, "kind"),
        ({"type": "Memory"}, "type"),
        ({"type": "memory.Get"}, "type"),
        ({"type": "Memory.get"}, "type"),
        ({"type": "Memory.Get.All"}, "type"),
        ({"type": "Memory.Get\n"}, "type"),
        ({"type": "Memory_.Get"}, "type"),
        ({"extra": 1}, "extra"),
        ({"metadata": {"timestamp": 5}}, "metadata.id"),
        ({"metadata": {"id": "1"}}, "metadata.timestamp"),
        ({"metadata": {"id": "", "timestamp": 5}}, "metadata.id"),
        ({"metadata": {"id": 1, "timestamp": 5}}, "metadata.id"),
        ({"metadata": {"id": "1", "timestamp": "5"}}, "metadata.timestamp"),
        ({"metadata": {"id": "1", "timestamp": -5}}, "metadata.timestamp"),
        ({"metadata": {"id": "1", "timestamp": 5, "correlation": 7}}, "metadata.correlation"),
        ({"metadata": None}, "metadata"),
        ({"kind": "error", "data": {"code": 200, "message": "fine"}}, "code"),
        ({"kind": "error", "data": {"code": 500}}, "message"),
    ],
)
def test_what_is_not_a_message_is_refused_with_the_place(changes, named):
    with pytest.raises(InvalidValueError, match=named.replace(".", r"\.")):
        Message.from_json(_line(**changes))


@pytest.mark.req("CQR-004")
def test_missing_data_becomes_an_empty_object_and_nothing_else_is_invented():
    line = json.dumps({key: value for key, value in GOOD.items() if key != "data"})

    message = Message.from_json(line)

    assert json.loads(message.to_json()) == GOOD


@pytest.mark.req("CQR-003")
def test_other_fields_of_metadata_are_carried_along():
    line = _line(metadata={"id": "1", "timestamp": 5, "traceparent": "00-ab"})

    assert json.loads(Message.from_json(line).to_json()) == json.loads(line)


@pytest.mark.req("CQR-005")
@pytest.mark.parametrize(
    "value",
    [object(), {1, 2}, math.nan, -math.inf, b"x", 2**70, datetime(2026, 1, 1, tzinfo=UTC), {1: 2}],
    ids=["object", "set", "nan", "infinity", "bytes", "large", "datetime", "key"],
)
def test_what_is_not_json_is_refused_where_it_is_sent(value):
    loop = ActorLoop([MEMORY])

    with pytest.raises(InvalidValueError, match=r"Memory\.Set is not JSON.*was not sent"):
        loop.enqueue(Message.command("Memory.Set", {"key": [value]}))
    assert loop.metrics()["lanes"]["user"] == 0
    assert loop.metrics()["pending"]["loop"] == 0


def test_null_is_json():
    assert Message.event("A.B", {"x": None, "y": 1.5}).to_json().count(b"null") == 1


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False,
    allow_infinity=False) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(
        st.characters(exclude_categories=["Cs"])), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@pytest.mark.req("CQR-005")
@given(_json)
def test_whatever_json_goes_in_comes_out(value):
    message = Message.event("A.B", {"x": value})

    assert Message.from_json(message.to_json()) == message


@pytest.mark.req("CQR-006")
def test_sender_and_receivers_share_nothing():
    class Spoiler(type(ear()[0])):
        async def handle(self, message):
            await super().handle(message)
            message.data["list"].append(self)

    one, first = ear("Thing.Done", actor=Spoiler(), id="one")
    two, second = ear("Thing.Done", actor=Spoiler(), id="two", inbound=of(None).inbound)
    loop = ActorLoop([first, second])
    data = {"list": [1]}
    loop.enqueue(Message.event("Thing.Done", data))

    data["list"].append(2)
    run(loop.run())

    assert one.heard[0].data["list"] == [1, one]
    assert two.heard[0].data["list"] == [1, two]
    assert data == {"list": [1, 2]}


@pytest.mark.req("CQR-006")
def test_what_an_actor_changes_after_it_sent_it_is_not_seen():
    async def handle(self, message):
        data = {"list": [1]}
        self.emit("Thing.Done", data)
        data["list"].append(2)
        self.reply(message, data)
        data["list"].append(3)

    listener, listening = ear("Thing.Done")
    loop = ActorLoop([of(handle), listening])

    async def story():
        async with loop:
            answer = await loop.request(Message.command("Do.It"))
            await listener.wait_for()
            return answer

    assert run(story()).data == {"list": [1, 2]}
    assert listener.heard[0].data == {"list": [1]}


@pytest.mark.req("CQR-040", "CQR-041")
def test_answers_and_consequences_name_their_cause_and_keep_the_correlation():
    request = Message.command("Memory.Set", {}, correlation="corr-1")

    for each in (
        request.reply({"ok": True}),
        request.error(404, "no"),
        Message.event("Memory.Changed", {}, cause=request),
        MemoryChanged.new({"key": "a", "value": 1}, cause=request),
        Message.event("Memory.Changed").caused_by(request),
    ):
        assert each.metadata.causation == request.metadata.id
        assert each.metadata.correlation == "corr-1"
        assert each.metadata.id != request.metadata.id
    assert request.reply().type == "Memory.Set"


def test_an_error_has_a_code_a_sentence_and_the_error_behind_it():
    request = Message.query("Memory.Get")
    first = request.error(503, "the disk is away")

    second = request.error(500, "not read", cause=first)

    assert second.data == {
        "code": 500,
        "message": "not read",
        "cause": {"code": 503, "message": "the disk is away"},
    }
    assert request.error(500, "x", cause=ErrorData(code=400, message="y")).data["cause"] == {
        "code": 400,
        "message": "y",
    }
    with pytest.raises(InvalidValueError, match="code"):
        request.error(200, "fine")


def test_a_typed_message_is_made_from_its_data_alone():
    made = MemoryChanged.new(SetData(key="a", value=1), correlation="c")

    assert (made.kind, made.type, made.data.value) == ("event", "Memory.Changed", 1)
    assert json.loads(made.to_json())["data"] == {"key": "a", "value": 1}
    with pytest.raises(TypeError, match="one literal kind"):
        Message.new({})


def test_ids_are_never_the_same():
    assert len({Message.event("A.B").metadata.id for _ in range(1000)}) == 1000


def test_the_answer_to_a_line_that_is_no_message_names_its_id_if_it_can():
    assert invalid("no", '{"metadata": {"id": "7"}}').metadata.causation == "7"
    assert invalid("no", b"\xff{").metadata.causation is None
    assert invalid("no", "[1]").type == "Sys.InvalidMessage"
    assert invalid("too long", code=413).data == {"code": 413, "message": "too long"}


def test_an_actor_without_handle_says_so():
    with pytest.raises(NotImplementedError, match="has no handle"):
        run(Actor().handle(None))
