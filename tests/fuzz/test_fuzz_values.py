"""Whatever a program hands over to be stored comes back as it was, or is refused."""

from __future__ import annotations

import json
from contextlib import closing
from functools import reduce

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from ontologia import Session, codec
from ontologia.errors import InvalidValueError, OntologiaError
from ontologia.schema.event import event_of, payload_of
from ontologia_conformance.backends import NAMES, Backend
from tests.fuzz.strategies import ANYTHING, JSON, examples
from tests.fuzz.targets import decoding, lines, messages, payloads, specs
from tests.fuzz.world import FIELDS, Fuzzed, FuzzedEvent, fuzzed


@examples(400)
@given(ANYTHING)
def test_what_is_encoded_is_the_same_when_it_is_decoded(value):
    try:
        text = codec.encode(value)
    except InvalidValueError:
        return

    assert json.dumps(codec.decode(text), sort_keys=True) == json.dumps(value, sort_keys=True)
    assert codec.encode(codec.decode(text)) == text


@examples(200)
@given(st.binary(max_size=40) | JSON.map(lambda value: json.dumps(value).encode()))
@example(b"[" * 2000)
@example(b"1e999")
@example(b'{"a":1,"a":2}')
@example(b'"\\ud800"')
@example(b"-0")
@example(b"123456789012345678901234567890")
def test_bytes_from_anywhere_are_understood_or_refused(data):
    for target in (decoding, payloads, messages, lines, specs):
        target(data)


FIELD_VALUES = st.tuples(st.sampled_from(FIELDS), ANYTHING)


@examples(400)
@given(FIELD_VALUES)
@example(("data", reduce(lambda inside, _: [inside], range(300), [])))
def test_an_object_takes_a_value_or_refuses_it(case):
    field, value = case
    try:
        text = Fuzzed.__shape__.dump(vars(Fuzzed(**vars(fuzzed("1")) | {field: value})))
    except InvalidValueError:
        return

    assert codec.encode(codec.decode(text)) == text


EVENT_FIELDS = list(FuzzedEvent.__shape__.fields)


@examples(300)
@given(st.tuples(st.sampled_from(EVENT_FIELDS), ANYTHING))
def test_an_event_takes_a_value_or_refuses_it(case):
    field, value = case
    try:
        payload = payload_of(FuzzedEvent(**{"text": "a"} | {field: value}))
    except (InvalidValueError, ValidationError):
        return

    assert payload_of(event_of(FuzzedEvent, payload)) == payload


@pytest.fixture(scope="module", params=[name for name in NAMES if name != "postgres16"])
def stored(request, tmp_path_factory):
    backend: Backend = request.getfixturevalue(request.param)
    with backend.store(tmp_path_factory.mktemp("values")) as uri, closing(Session(uri)) as session:
        yield session


@examples(60)
@given(case=FIELD_VALUES)
def test_what_a_store_takes_comes_back_as_it_was(stored, case):
    field, value = case
    try:
        made = Fuzzed(**vars(fuzzed("1")) | {field: value})
        stored.ensure(made)
    except InvalidValueError:
        return
    key = made.id
    try:
        stored.commit()
    except OntologiaError:
        stored.discard()
        raise

    found = stored.query().entities(Fuzzed).where(Fuzzed.id == key).first()

    assert Fuzzed.__shape__.dump(vars(found)) == Fuzzed.__shape__.dump(vars(made))
    assert stored.commit() is None
