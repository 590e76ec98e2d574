"""Manifests: what fits, and for what does not a line with file, key, what and remedy."""

from __future__ import annotations

import pytest

from ontologia.config import OntologiaConfig
from ontologia.errors import ManifestError
from ontologia.extensions.manifest import read_manifest, settings_of, unknown_variables

WHOLE = """
id: reminders
version: "1.2"
description: Tells of what is due.
entry_point: app.main:Reminders
events:
  subscribes:
    - {topic: reminder.due, handler: notify_user}
    - {topic: reminder.asked, handler: custom, max_attempts: 3}
  publishes: [reminder.due]
agent:
  integration_mode: tool
  model: gpt-5-mini
  instructions: |
    You handle reminders.
  Anything: {as: [it, is]}
settings:
  pause: {type: number, default: 8, description: Seconds.}
  token: {type: string, required: true}
depends_on: [clock]
permissions: {publish: [reminder.due], subscribe: [reminder.due, reminder.asked], read: [Customer]}
"""


@pytest.fixture
def read(tmp_path):
    def reading(text):
        path = tmp_path / "manifest.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_manifest(path)

    return reading


@pytest.fixture
def refused(read, tmp_path):
    """The lines that a manifest is refused with, without the file's name, which each begins with."""

    def refusing(text):
        with pytest.raises(ManifestError) as caught:
            read(text)
        lines = caught.value.problems
        prefix = f"{tmp_path / 'manifest.yaml'}: "
        assert all(line.startswith(prefix) and "\n" not in line for line in lines)
        return [line.removeprefix(prefix) for line in lines]

    return refusing


@pytest.mark.req("BUS-032", "BUS-037", "BUS-039")
def test_a_whole_manifest_is_read_in_its_order_and_the_agent_as_it_is_written(read):
    manifest = read(WHOLE)

    assert [
        (each.topic, each.handler, each.max_attempts) for each in manifest.events.subscribes
    ] == [
        ("reminder.due", "notify_user", 1),
        ("reminder.asked", "custom", 3),
    ]
    assert manifest.agent == {
        "integration_mode": "tool",
        "model": "gpt-5-mini",
        "instructions": "You handle reminders.\n",
        "Anything": {"as": ["it", "is"]},
    }
    assert (manifest.version, manifest.entry_point) == ("1.2", "app.main:Reminders")
    assert manifest.permissions.read == ["Customer"]


@pytest.mark.req("BUS-039")
def test_a_manifest_needs_nothing_but_an_id(read):
    manifest = read("id: small")

    assert manifest.events.subscribes == []
    assert manifest.permissions is None


@pytest.mark.parametrize(
    ("text", "line"),
    {
        "bad YAML": ("id: [", "line 1, column 6: is no YAML: while parsing a flow node"),
        "tabs": ("id: a\nevents:\n\tpublishes: []", "line 3, column 1: is no YAML:"),
        "a key twice": ("id: a\nid: b", "line 2, column 1: is no YAML: the key id is there twice"),
        "empty": ("", "is empty; begin with id:"),
        "a list": ("- id: a", "is a list, no mapping; begin with id:"),
        "a date that is none": ("id: a\nversion: 2026-02-31", "is no YAML: day is out of range"),
        "not UTF-8": (b"id: \xff", "is no UTF-8 at byte 4; save it as UTF-8"),
        "deep": ("id: " + "[" * 5_000, "is nested too deeply"),
        "a template": ("id: {{ name }}", "line 1, column 6: is no YAML: while constructing a mapp"),
        "half a letter": (
            'id: a\nversion: "\\uD83D"',
            "line 2, column 10: is no YAML: there is half of a letter; write the letter itself",
        ),
        "an object": ("id: !!python/object/apply:os.system [ls]", "line 1, column 5: is no YAML"),
        "no id": ("version: '1'", "id: is missing; add id: and its value"),
        "an id with a dash": ("id: my-ext", "id: has a-z, 0-9 and _, and begins with a letter"),
        "a number": ("id: a\nversion: 1.0", "version: must be text, got 1.0; write it in quotes"),
        "an unknown key": (
            "id: a\nevent: {}",
            "event: is no key of a manifest; did you mean events?",
        ),
        "one inside": (
            "id: a\nevents: {subscribe: []}",
            "events.subscribe: is no key of a manifest; did you mean subscribes?",
        ),
        "nothing": ("id: a\npermissions:", "permissions: has no value; write one, or remove"),
        "nothing inside": ("id: a\nevents: {publishes: }", "events.publishes: has no value"),
        "text for a list": ("id: a\ndepends_on: b", "depends_on: must be a list, got 'b'; begin"),
        "text for keys": ("id: a\nevents: all", "events: must have keys, got 'all'; write"),
        "itself": ("id: a\ndepends_on: [a]", "depends_on: names the extension itself; remove it"),
        "an entry point": (
            "id: a\nentry_point: main.py",
            "entry_point: is a module and a class, got",
        ),
        "attempts": (
            "id: a\nevents: {subscribes: [{topic: x, handler: custom, max_attempts: 0}]}",
            "events.subscribes[0].max_attempts: input should be greater than or equal to 1, got 0",
        ),
        "a setting's type": (
            "id: a\nsettings: {x: {type: int}}",
            "settings.x.type: is one of string, integer, number, boolean, got 'int'; did you mean",
        ),
        "a default of another type": (
            "id: a\nsettings: {x: {type: integer, default: yes}}",
            "settings.x.default: is no integer: True; write one, or change the type",
        ),
        "a default for what is required": (
            "id: a\nsettings: {x: {type: string, default: a, required: true}}",
            "settings.x: is required and has a default; remove one of the two",
        ),
        "a pattern of names": (
            "id: a\npermissions: {read: ['*']}",
            "permissions.read[0]: names are written out, got '*'; list them, or allow everything",
        ),
        "a topic that is not permitted": (
            "id: a\nevents: {publishes: [b.c]}\npermissions: {}",
            "events.publishes[0]: b.c is not among permissions.publish; add it there: - b.c",
        ),
        "a subscription that is not permitted": (
            "id: a\nevents: {subscribes: [{topic: b.c, handler: custom}]}\npermissions: {}",
            "events.subscribes[0].topic: b.c is not among permissions.subscribe; add it there: - b.c",
        ),
    }.values(),
)
def test_what_does_not_fit_is_a_line_with_its_key_and_what_helps(refused, text, line):
    [said] = refused(text)

    assert said.startswith(line)
    assert "; " in said


@pytest.mark.req("BUS-036")
@pytest.mark.parametrize(
    ("entry", "line"),
    [
        (
            "{topic: a.b, handler: notify_usr}",
            "handler: is one of notify_user, invoke_agent, custom, got 'notify_usr'; did you mean ",
        ),
        ("{handler: custom}", "topic: is missing; add topic: and its value"),
        ("{topic: 5, handler: custom}", "topic: must be text, got 5; write it in quotes"),
        ("{topic: 'a b', handler: custom}", "topic: is 1 to 200 characters without spaces and *"),
        ("{topic: a.b}", "handler: is missing; add handler: and its value"),
    ],
)
def test_a_bad_subscription_is_named_by_its_number(refused, entry, line):
    good = "{topic: fine, handler: custom}"

    [said] = refused(f"id: a\nevents:\n  subscribes:\n    - {good}\n    - {entry}")

    assert said.startswith(f"events.subscribes[1].{line}")


def test_every_problem_of_a_manifest_is_told_at_once(refused):
    assert len(refused("id: A\nversion: 1\nnonsense: true")) == 3


def test_aliases_that_stand_for_millions_are_not_written_out(refused):
    lines = ["id: a", "x0: &x0 [y, y, y, y, y, y, y, y, y, y]"]
    for number in range(1, 40):
        lines.append(f"x{number}: &x{number} [{', '.join([f'*x{number - 1}'] * 10)}]")

    said = refused("\n".join([*lines, "version: *x39"]))

    assert said[0].startswith("version: must be text, got [[")
    assert max(map(len, said)) < 300


def test_a_manifest_that_is_a_folder_is_a_line_too(tmp_path):
    (tmp_path / "manifest.yaml").mkdir()

    with pytest.raises(ManifestError, match=r"manifest\.yaml: cannot be read: Is a directory; "):
        read_manifest(tmp_path / "manifest.yaml")


# -- settings ------------------------------------------------------------------------------------

SETTINGS = """
id: my_ext
settings:
  name: {type: string, default: Ada}
  count: {type: integer, default: 3}
  pause: {type: number}
  loud: {type: boolean, default: false}
"""


def test_a_setting_is_what_the_environment_says_else_its_default(read, tmp_path):
    manifest = read(SETTINGS)
    said = {"ONTOLOGIA_EXT_MY_EXT_PAUSE": "0.5", "ONTOLOGIA_EXT_MY_EXT_LOUD": "Yes"}

    assert settings_of(manifest, tmp_path, {}) == {
        "name": "Ada",
        "count": 3,
        "pause": None,
        "loud": False,
    }
    assert settings_of(manifest, tmp_path, said)["pause"] == 0.5
    assert settings_of(manifest, tmp_path, said)["loud"] is True


@pytest.mark.parametrize(
    ("name", "text"), [("COUNT", "x"), ("COUNT", "1.5"), ("PAUSE", "nan"), ("LOUD", "perhaps")]
)
def test_a_value_that_does_not_fit_is_told_without_the_value(read, tmp_path, name, text):
    with pytest.raises(ManifestError) as caught:
        settings_of(read(SETTINGS), tmp_path, {f"ONTOLOGIA_EXT_MY_EXT_{name}": text})

    [line] = caught.value.problems
    assert f"settings.{name.lower()}: ONTOLOGIA_EXT_MY_EXT_{name} is no " in line
    assert "; give " in line
    assert f" {text}" not in line


def test_what_is_required_and_missing_is_told_with_its_variable(read, tmp_path):
    with pytest.raises(ManifestError, match="has no value; set the variable ONTOLOGIA_EXT_A_TOKEN"):
        settings_of(read("id: a\nsettings: {token: {type: string, required: true}}"), tmp_path, {})


def test_a_variable_that_no_extension_has_is_told_of(read):
    environment = {"ONTOLOGIA_EXT_MY_EXT_COUMT": "1", "ONTOLOGIA_EXT_MY_EXT_COUNT": "1", "X": "1"}

    [sentence] = unknown_variables([read(SETTINGS)], environment)

    assert sentence.startswith("ONTOLOGIA_EXT_MY_EXT_COUMT is no setting of these extensions; did ")
    assert sentence.endswith("you mean ONTOLOGIA_EXT_MY_EXT_COUNT?")


def test_the_settings_of_extensions_are_no_settings_of_a_session(monkeypatch):
    monkeypatch.setenv("ONTOLOGIA_EXT_MY_EXT_COUNT", "1")

    assert OntologiaConfig().default_namespace == "default"
