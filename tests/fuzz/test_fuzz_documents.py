"""Files that people write or machines bring: manifests, settings, exports, places, schedules."""

from __future__ import annotations

import json

import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from tests.fuzz.strategies import JSON, TEXT, examples
from tests.fuzz.targets import crons, imports, manifests, places, settings

KEYS = st.sampled_from(
    [
        *("id", "version", "description", "entry_point", "events", "agent", "settings", "type"),
        *("depends_on", "permissions", "subscribes", "publishes", "topic", "handler", "default"),
        *("max_attempts", "required", "publish", "subscribe", "read", "write", "<<", "Id"),
    ]
)
VALUES = JSON | st.sampled_from(
    ["reminders", "main:Extension", "reminder.due", "notify_user", "string", "integer", "*", "1"]
)
MANIFESTS = st.recursive(
    VALUES,
    lambda inner: st.dictionaries(KEYS | TEXT, inner, max_size=6) | st.lists(inner, max_size=3),
    max_leaves=12,
).map(lambda value: {"id": "fuzzed"} | value if isinstance(value, dict) else value)


def printable(value: object) -> bytes:
    return json.dumps(value).encode()


@examples(200)
@given(MANIFESTS)
def test_a_manifest_is_understood_or_refused(value):
    manifests(printable(value))
    try:
        text = yaml.safe_dump(value, allow_unicode=True)
    except (yaml.YAMLError, UnicodeError):
        return
    manifests(text.encode(errors="surrogatepass"))


@examples(200)
@given(
    st.binary(max_size=80) | st.text("abi:-?!&*|>{}[]<#'\"\n\t 01~=.", max_size=60).map(str.encode)
)
@example(b"a: &a [*a]")
@example(b"? ? ? ?\n")
@example(b"id: !!python/object:os.system x")
@example(b"id: !!binary x")
@example(b"id: 0000-00-00")
@example(b"<<: 1\n")
@example(b"<<: [1]\n")
@example(b"{a: 1}: 2")
@example(b"[" * 3000)
@example(b"id: " + b"9" * 5000)
def test_a_file_that_is_hardly_yaml_is_understood_or_refused(data):
    manifests(data)


@examples(100)
@given(
    st.binary(max_size=60)
    | st.dictionaries(
        st.sampled_from(["lock_timeout_ms", "default_namespace", "random", "clock", "max_batch_size"]),
        JSON,
        max_size=3,
    ).map(lambda table: "\n".join(f"{k} = {json.dumps(v)}" for k, v in table.items()).encode())
)  # fmt: skip
def test_settings_are_understood_or_refused(data):
    settings(data)


@examples(200)
@given(st.binary(max_size=40) | st.text(":/@?[]%=&.a1\0-", max_size=30).map(str.encode))
@example(b"\xff")
@example(b"h/\xff")
@example(b"h/d?schema=\xff")
@example(b"h:99999999999/d")
@example(b"%zz@h/d")
@example(b"h/%00")
def test_a_uri_names_a_place_or_none(data):
    places(data)


FIELD = st.sampled_from(
    ["*", "0", "1-5", "*/15", "MON", "L", "1#2", "5L", "LW", "31", "2", "?", "60"]
)


@examples(200)
@given(
    st.binary(max_size=30)
    | st.tuples(
        st.lists(FIELD | st.text("0123456789*/-,#LW ", max_size=6), min_size=4, max_size=6),
        TEXT | st.sampled_from(["Europe/Berlin", "UTC", "../etc/passwd", "/etc/localtime", "Europe"]),
    ).map(lambda case: f"{' '.join(case[0])}\n{case[1]}".encode(errors="surrogatepass"))
)  # fmt: skip
@example(b"0 0 31 2 *\n")
@example(b"0 0 29 2 1\nEurope/Berlin")
def test_a_schedule_is_understood_or_refused(data):
    crons(data)


HEADER = {"format": "ontologia", "version": 1, "head": 1, "objects": 1, "types": []}
LINES = st.lists(
    JSON
    | st.fixed_dictionaries(
        {},
        optional={
            "entity": st.just("Fuzzed") | JSON,
            "relation": st.just("FuzzedLink") | JSON,
            "type": st.just("Fuzzed") | JSON,
            "kind": st.sampled_from(["entity", "relation"]) | JSON,
            "key": st.just("1") | JSON,
            "fields": st.dictionaries(TEXT, JSON, max_size=3) | JSON,
        },
    ),
    max_size=4,
)


@examples(120)
@given(st.tuples(st.booleans(), LINES, st.sampled_from([b"\n", b"\r\n", b"\n\n", b"\0"])))
def test_lines_are_imported_or_refused_and_nothing_changes(case):
    whole, listed, end = case
    imports(end.join(printable(each) for each in ([HEADER] if whole else []) + listed))
