"""A store on a socket: whatever a program in another language asks of it has one plain answer."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ontologia import Session, codec
from ontologia.actors.bridge import bridged
from ontologia.commands import Env
from ontologia_conformance.backends import NAMES, Backend
from tests.fuzz.strategies import JSON, TEXT, examples
from tests.fuzz.world import FIELDS, Fuzzed, FuzzedLink, filled, fuzzed
from tests.integration.actor_world import connected, line, serving

REQUESTS = {
    **dict.fromkeys(["State.Get", "State.Query", "State.History", "Event.Inspect"], "query"),
    **dict.fromkeys(["State.Ensure", "Event.Publish"], "command"),
}
EDGES = st.sampled_from([0, 1, 2**31, 2**53, 2**63 - 1, 2**63, 2**64 - 1, -1, 1.5, 1e300])
WHOLE = st.integers(0, 3) | EDGES | JSON
VALUES = JSON | EDGES
KEYS = st.sampled_from(["1", "ü", "gone", 1]) | VALUES
TYPES = st.sampled_from(["Fuzzed", "Fuzzed", "FuzzedLink", "Other", "*", ""]) | TEXT
CLAUSE = st.tuples(
    st.sampled_from([*FIELDS, "data.a", "left.text", "items.k", "a..b"]) | TEXT,
    st.sampled_from(["=", "!=", "<", ">=", "in", "not in", "like", "ilike"]) | TEXT,
    VALUES,
).map(list)
WHERE = st.lists(CLAUSE | st.sampled_from(["&", "|", "!"]), max_size=3) | JSON
STORED = codec.decode(Fuzzed.__shape__.dump(vars(fuzzed("1"))))
FIELDS_GIVEN = st.dictionaries(st.sampled_from(FIELDS) | TEXT, VALUES, max_size=2).map(
    lambda changed: STORED | changed
)
PAYLOAD = st.dictionaries(TEXT, VALUES, max_size=3) | JSON


def named(**more: Any) -> st.SearchStrategy[Any]:
    """Which object is meant, and more."""
    entity = st.fixed_dictionaries({"type": TYPES, "key": KEYS}, optional=more)
    ends = {"type": TYPES, "left": KEYS, "right": KEYS}
    return entity | st.fixed_dictionaries(ends, optional=more | {"instance": VALUES})


OBJECTS = st.lists(
    st.fixed_dictionaries({"type": TYPES, "fields": FIELDS_GIVEN | JSON}) | JSON, max_size=2
)
EVENT = {"type": TYPES, "payload": PAYLOAD}
DATA = {
    "State.Get": named(asOf=WHOLE),
    "State.History": named(since=WHOLE, limit=WHOLE),
    "State.Query": st.fixed_dictionaries(
        {"type": TYPES},
        optional={"where": WHERE, "orderBy": st.sampled_from(FIELDS) | TEXT}
        | dict.fromkeys(["limit", "offset", "asOf"], WHOLE),
    ),
    "State.Ensure": st.fixed_dictionaries(
        {"objects": OBJECTS},
        optional={"delete": st.lists(named(), max_size=2), "expectedHead": WHOLE}
        | {"event": st.fixed_dictionaries(EVENT)},
    ),
    "Event.Publish": st.fixed_dictionaries(
        EVENT, optional={"dedupKey": TEXT, "delayMs": WHOLE, "dueAt": WHOLE}
    ),
    "Event.Inspect": st.fixed_dictionaries({"eventId": TEXT}),
}
ASKED = st.sampled_from(sorted(DATA)).flatmap(
    lambda type: st.tuples(st.just(type), DATA[type] | st.dictionaries(TEXT, JSON, max_size=3))
)


@pytest.fixture(scope="module", params=[name for name in NAMES if name != "postgres16"])
def ask(request, tmp_path_factory):
    """Ask a store on a socket for something; its answer."""
    backend: Backend = request.getfixturevalue(request.param)
    folder = tmp_path_factory.mktemp("b")
    host = asyncio.new_event_loop()

    async def started(stack: AsyncExitStack, uri: str) -> Any:
        types = {"entity_types": [Fuzzed], "relation_types": [FuzzedLink]}
        session = filled(stack.enter_context(Session(uri, **types)))
        env = stack.enter_context(Env(session))
        path = folder / "s"
        await stack.enter_async_context(serving(path, bridged(env, [])))
        return await stack.enter_async_context(connected(path))

    with backend.store(folder) as uri:
        stack = AsyncExitStack()
        client = host.run_until_complete(started(stack, uri))

        async def asked(type: str, data: Any) -> dict[str, Any]:
            await client.send(line(type, data, kind=REQUESTS[type]))
            return await asyncio.wait_for(client.read(), 60)

        yield lambda type, data: host.run_until_complete(asked(type, data))
        host.run_until_complete(stack.aclose())
    host.close()


@examples(250)
@given(asked=ASKED)
@example(asked=("Event.Publish", {"type": "x", "payload": {"a": 2**64 - 1}}))
@example(asked=("Event.Publish", {"type": "x", "payload": {}, "delayMs": 1e300}))
@example(asked=("State.Query", {"type": "Fuzzed", "offset": 2**64 - 1}))
@example(asked=("State.Get", {"type": "Fuzzed", "key": "1", "asOf": 2**64 - 1}))
def test_a_request_is_answered_once_and_nothing_fails(ask, asked):
    answer = ask(*asked)

    assert answer["kind"] in ("reply", "error")
    assert answer["kind"] == "reply" or answer["data"]["code"] < 500, answer
    assert "Traceback" not in json.dumps(answer)
