"""What the pages on extensions and manifests say is so."""

from __future__ import annotations

import asyncio
import inspect
import re
import subprocess
import sys
from typing import get_args

import pytest

from ontologia import extensions as extensions_package
from ontologia.extensions import Channels, EventBus, Host, OpenAIChatAgent, TerminalChannel
from ontologia.extensions.manifest import (
    Events,
    HandlerName,
    Manifest,
    PermissionLists,
    Setting,
    SettingType,
    Subscription,
    read_manifest,
)
from tests.docs.test_documentation import DOCS, blocks, public_methods

MANIFEST = DOCS / "reference/manifest.md"
HOWTO = DOCS / "howto/extensions.md"


@pytest.mark.parametrize("part", [Manifest, Events, Subscription, Setting, PermissionLists])
def test_every_key_of_a_manifest_is_documented(part):
    words = MANIFEST.read_text()

    assert [name for name in part.model_fields if f"`{name}`" not in words] == []


def test_every_handler_and_type_is_documented():
    words = MANIFEST.read_text()

    assert [
        n for n in (*get_args(HandlerName), *get_args(SettingType)) if f"`{n}`" not in words
    ] == []


def test_the_defaults_in_the_tables_are_those_of_the_code():
    words = MANIFEST.read_text()
    agent = inspect.signature(OpenAIChatAgent).parameters

    assert f"| `max_attempts` | {Subscription.model_fields['max_attempts'].default} |" in words
    assert f"| `timeout` | {agent['timeout'].default:g} |" in words
    assert 'OpenAIChatAgent(model, *, instructions="", endpoint=…, key=None, timeout=60.0)' in words
    assert [*agent] == ["model", "instructions", "endpoint", "key", "timeout"]


@pytest.mark.parametrize(
    "text",
    [*blocks(MANIFEST, "yaml"), *blocks(HOWTO, "yaml")],
    ids=lambda text: text.split("\n", 1)[0],
)
def test_the_manifests_on_the_pages_fit(text, tmp_path):
    (tmp_path / "manifest.yaml").write_text(text)

    assert read_manifest(tmp_path / "manifest.yaml").id in text


@pytest.fixture
def extensions(tmp_path):
    """The folder as a reader of the page has it."""
    reminders, checkin, _ = blocks(HOWTO, "yaml")
    code, _ = blocks(HOWTO, "python")
    for name, files in {
        "reminders": {"manifest.yaml": reminders},
        "checkin": {"manifest.yaml": checkin, "main.py": code},
    }.items():
        (tmp_path / "extensions" / name).mkdir(parents=True)
        for file, text in files.items():
            (tmp_path / "extensions" / name / file).write_text(text)
    return tmp_path / "extensions"


def test_the_extensions_of_the_page_do_what_it_says(extensions, tmp_path):
    class User:
        def __init__(self):
            self.texts = asyncio.Queue()

        async def send(self, text, channel_id=None):
            await self.texts.put(text)

    async def story():
        user, channels, bus = User(), Channels(), EventBus(tmp_path / "app.db")
        channels.add("user", user)
        variables = {"ONTOLOGIA_EXT_CHECKIN_PAUSE": "0.01"}
        async with Host(extensions, bus, channels=channels, environment=variables):
            await bus.publish("reminder.due", "me", {"text": "Drink water"})
            await bus.publish("checkin.started", "me", {"step": 1, "total": 3})
            texts = [await asyncio.wait_for(user.texts.get(), 30) for _ in range(4)]
        await bus.close()
        return texts

    assert asyncio.run(story()) == [
        "Drink water",
        *(f"Check-in {step}: how is it going?" for step in (1, 2, 3)),
    ]


def test_the_program_of_the_page_runs(extensions, tmp_path):
    _, program = blocks(HOWTO, "python")

    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    [shown] = blocks(HOWTO, "text")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == shown.splitlines()[1:]  # below the command


def test_the_commands_of_the_page_are_there():
    lines = re.findall(r"^ontologia extensions (\w+)", HOWTO.read_text(), re.MULTILINE)

    assert {*lines} == {"run", "new"}
    assert "ontologia extensions list extensions" in HOWTO.read_text()


@pytest.mark.parametrize("cls", [Host, Channels, TerminalChannel])
def test_every_method_is_documented(cls):
    words = (DOCS / "reference/extensions.md").read_text()

    assert [n for n in public_methods(cls) if not re.search(rf"\b{n}\b", words)] == []


def test_every_public_name_is_documented():
    words = (DOCS / "reference/extensions.md").read_text()
    hardly = {"Extension", "Handler"}  # shapes, which the pages describe by their methods

    assert {n for n in extensions_package.__all__ if not re.search(rf"\b{n}\b", words)} <= hardly
