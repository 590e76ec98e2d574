"""Extensions in a host: wired, started, handed events, reloaded and stopped."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from contextlib import asynccontextmanager

import pytest

from ontologia import Session
from ontologia.errors import ConnectionLostError, ExtensionError, NotFoundError
from ontologia.extensions import Channels, EventBus, Host, TerminalChannel
from ontologia.extensions.watching import stamps, watch
from tests.integration.chat_server import chat_server, refused, streamed
from tests.integration.running import PATIENCE
from tests.unit.extension_folders import extension

NOTIFIES = "events: {subscribes: [{topic: reminder.due, handler: notify_user}]}"
INVOKES = "events: {subscribes: [{topic: task.received, handler: invoke_agent}]}"
FINE = """
class Extension:
    async def initialize(self, context):
        self.ctx = context
"""


class Heard:
    """A channel that remembers."""

    def __init__(self):
        self.texts = []

    async def send(self, text, channel_id=None):
        self.texts.append(text if channel_id is None else (channel_id, text))


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "extensions"


@pytest.fixture
def user():
    return Heard()


@pytest.fixture
def hosting(uri, folder, user):
    """`async with hosting() as host`: the extensions of the folder, on a store of its own."""

    @asynccontextmanager
    async def started(*, channels=None, patience=5.0, environment=None):
        given = channels or Channels()
        if channels is None:
            given.add("home", user)
        bus = EventBus(uri)
        try:
            host = Host(
                folder, bus, channels=given, patience=patience, environment=environment or {}
            )
            async with host:
                yield host
        finally:
            await bus.close()

    return started


async def settled(host, topic=None):
    """Wait until no event waits; the journal."""
    async with asyncio.timeout(PATIENCE):
        while True:
            listed = await host.bus.journal.list(topic=topic)
            entries = [each for each in listed if each["topic"] != "event.dead_letter"]
            if entries and all(each["status"] in ("done", "failed") for each in entries):
                return entries
            await asyncio.sleep(0.005)


async def eventually(condition):
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - what is waited for says nothing by itself
            await asyncio.sleep(0.005)


def run(story):
    return asyncio.run(asyncio.wait_for(story, PATIENCE))


# -- the handlers of a manifest ------------------------------------------------------------------


@pytest.mark.req("BUS-032", "BUS-033", "BUS-061")
def test_notify_user_sends_the_text_over_the_default_channel_or_the_one_that_is_named(
    folder, hosting, user
):
    extension(folder, "reminders", NOTIFIES)
    office = Heard()

    async def story():
        async with hosting() as host:
            host.channels.add("office", office)
            await host.bus.publish("reminder.due", "me", {"text": "Drink water"})
            await host.bus.publish("reminder.due", "me", {"text": "Go", "channel_id": "office"})
            await host.bus.publish("reminder.due", "me", {"text": "3", "channel_id": "office:3"})
            return await settled(host)

    entries = run(story())

    assert user.texts == ["Drink water"]
    assert office.texts == [("office", "Go"), ("office:3", "3")]
    assert {each["status"] for each in entries} == {"done"}


@pytest.mark.req("BUS-038")
@pytest.mark.parametrize(
    ("payload", "said"),
    [
        ({}, "reminder.due has nothing to send: payload.text must be text, there is none"),
        ({"text": 5}, "payload.text must be text, got 5"),
        ({"text": ""}, "payload.text must be text, got ''"),
        ({"text": "a", "channel_id": "gone"}, "there is no channel 'gone'; nothing was sent"),
        ({"text": "a", "channel_id": 7}, "payload.channel_id of reminder.due must be the name of"),
    ],
)
def test_what_cannot_be_sent_has_failed_with_a_reason_and_the_next_is_sent(
    folder, hosting, user, payload, said
):
    extension(folder, "reminders", NOTIFIES)

    async def story():
        async with hosting() as host:
            await host.bus.publish("reminder.due", "me", payload)
            await host.bus.publish("reminder.due", "me", {"text": "fine"})
            return await settled(host)

    first, second = run(story())

    assert (first["status"], second["status"]) == ("failed", "done")
    assert first["error"].startswith("reminders: ExtensionError: ")
    assert said in first["error"]
    assert user.texts == ["fine"]


@pytest.mark.req("BUS-034", "BUS-037")
def test_invoke_agent_sends_the_answer_of_the_extensions_own_agent(folder, hosting, user):
    extension(
        folder,
        "tasks",
        INVOKES + "\nagent: {integration_mode: tool, Mood: calm}",
        main=FINE
        + """
    async def run(self, event):
        if event.payload["text"] == "silence":
            return ""
        return f"{self.ctx.agent['Mood']}: {event.payload['text']}"
""",
    )

    async def story():
        async with hosting() as host:
            await host.bus.publish("task.received", "me", {"text": "Summarize"})
            await host.bus.publish("task.received", "me", {"text": "silence"})
            return await settled(host)

    assert [each["status"] for each in run(story())] == ["done", "done"]
    assert user.texts == ["calm: Summarize"]


@pytest.mark.req("BUS-034")
def test_an_agent_without_code_asks_the_endpoint_that_its_settings_name(folder, hosting, user):
    with chat_server() as server:
        server.answer = streamed("It ", "is done")
        extension(
            folder,
            "tasks",
            INVOKES
            + "\nagent: {model: gpt-5-mini, instructions: Work.}"
            + "\nsettings: {base_url: {type: string, required: true}, api_key: {type: string}}",
        )
        variables = {
            "ONTOLOGIA_EXT_TASKS_BASE_URL": server.url,
            "ONTOLOGIA_EXT_TASKS_API_KEY": "k",
        }

        async def story():
            async with hosting(environment=variables) as host:
                await host.bus.publish("task.received", "me", {"text": "Do it"})
                await settled(host)

        run(story())

    assert user.texts == ["It is done"]
    assert server.keys == ["Bearer k"]
    assert server.questions[0]["messages"][0]["content"] == "Work."


def test_an_endpoint_that_says_when_is_asked_again_then(folder, hosting, user):
    with chat_server() as server:

        def answer(request):
            first = len(server.questions) == 1
            (refused(429, "{}", Retry_After="0") if first else streamed("now"))(request)

        server.answer = answer
        extension(
            folder,
            "tasks",
            f"""
            events: {{subscribes: [{{topic: t, handler: invoke_agent, max_attempts: 2}}]}}
            agent: {{model: m, base_url: "{server.url}"}}
            """,
        )

        async def story():
            async with hosting() as host:
                await host.bus.publish("t", "me", {})
                return await settled(host)

        [entry] = run(story())

    assert (entry["status"], user.texts) == ("done", ["now"])


def test_an_agent_that_fails_or_answers_nonsense_makes_the_event_failed(folder, hosting, user):
    extension(
        folder,
        "tasks",
        INVOKES,
        main=FINE
        + """
    async def run(self, event):
        return 5 if event.payload else 1 / 0
""",
    )

    async def story():
        async with hosting() as host:
            await host.bus.publish("task.received", "me", {})
            await host.bus.publish("task.received", "me", {"a": 1})
            return await settled(host)

    first, second = run(story())

    assert first["error"] == "tasks: ZeroDivisionError: division by zero"
    assert "the agent's answer to task.received is no text, got 5" in second["error"]
    assert user.texts == []


@pytest.mark.req("BUS-035", "BUS-039", "BUS-066")
def test_custom_wires_nothing_and_handlers_of_the_manifest_come_first_in_file_order(
    folder, hosting, user
):
    extension(
        folder,
        "checkin",
        """
        events:
          subscribes:
            - {topic: checkin.started, handler: custom}
            - {topic: checkin.started, handler: invoke_agent}
            - {topic: checkin.started, handler: notify_user}
        """,
        main="""
class Extension:
    async def initialize(self, context):
        self.ctx = context
        context.subscribe_event("checkin.started", self.on_started)

    async def on_started(self, event):
        await self.ctx.emit("checkin.seen", {"by": self.ctx.extension_id})

    async def run(self, event):
        return "from the agent"
""",
    )

    async def story():
        async with hosting() as host:
            assert [each.subscriber_id for each in host.bus.subscribers.of("checkin.started")] == [
                "checkin"
            ] * 3
            await host.bus.publish("checkin.started", "me", {"text": "from the event"})
            await settled(host)
            return await settled(host, "checkin.seen")

    [seen] = run(story())

    assert user.texts == ["from the agent", "from the event"]
    assert seen["source"] == "checkin"


def test_a_handler_of_the_manifest_is_tried_as_often_as_it_says(folder, hosting):
    extension(
        folder,
        "tasks",
        """
        events:
          subscribes:
            - {topic: built.in, handler: invoke_agent, max_attempts: 2}
            - {topic: by.hand, handler: custom, max_attempts: 3}
            - {topic: by.hand, handler: notify_user}
        """,
        main="""
from ontologia import Retry

class Extension:
    seen = []

    async def initialize(self, context):
        context.subscribe_event("by.hand", self.run)

    async def run(self, event):
        self.seen.append(event.topic)
        raise Retry(after=0)
""",
    )

    async def story():
        async with hosting() as host:
            await host.bus.publish("built.in", "me", {})
            await host.bus.publish("by.hand", "me", {})
            await settled(host)
            return sorted(host._hosted[0].loaded.instance.seen)

    assert run(story()) == ["built.in"] * 2 + ["by.hand"] * 3


# -- starting and stopping -----------------------------------------------------------------------

TELLS = """
import pathlib
diary = pathlib.Path(__file__).parent.parent / "diary"

class Extension:
    def tell(self, what):
        with diary.open("a") as file:
            file.write(f"{self.ctx.extension_id} {what}\\n")

    async def initialize(self, context):
        self.ctx = context
        self.tell("initialize")

    async def start(self):
        self.tell("start")

    async def stop(self):
        self.tell("stop")

    def health(self):
        return {"mood": "good"}
"""


@pytest.mark.req("BUS-032")
def test_all_are_wired_then_initialized_then_started_and_stopped_in_reverse(folder, hosting):
    extension(folder, "a", "depends_on: [z]", main=TELLS)
    extension(folder, "z", main=TELLS)
    # It is first, depends on nobody, and sees that what comes last has been wired.
    extension(
        folder,
        "first",
        main="""
class Extension:
    async def initialize(self, context):
        self.wired = len(context._bus.subscribers.of("reminder.due"))
""",
    )
    extension(folder, "zz", NOTIFIES)

    async def story():
        async with hosting() as host:
            [first] = [each for each in host._hosted if each.loaded.id == "first"]
            return host.running, host.health(), first.loaded.instance.wired

    running, health, wired = run(story())

    assert running == ["z", "a", "first", "zz"]
    assert wired == 1
    assert health["a"] == {"state": "running", "reasons": [], "health": {"mood": "good"}}
    assert (folder / "diary").read_text().splitlines() == [
        "z initialize",
        "a initialize",
        "z start",
        "a start",
        "a stop",
        "z stop",
    ]


BREAKS = {
    "raises": "1 / 0",
    "ends the process": "raise SystemExit(2)",
    "cancels itself": "import asyncio; raise asyncio.CancelledError",
    "never ends": "import asyncio; await asyncio.Event().wait()",
}


@pytest.mark.parametrize("method", ["initialize", "start"])
@pytest.mark.parametrize("body", BREAKS.values(), ids=BREAKS.keys())
def test_one_that_fails_is_taken_out_and_the_others_run(folder, hosting, user, method, body):
    source = f"""
class Extension:
    async def initialize(self, context):
        context.subscribe_event("x.y", self.handle)
        {body if method == "initialize" else "pass"}

    async def start(self):
        {body}

    async def handle(self, event):
        raise ValueError("it should not be called")

    async def send(self, text, channel_id=None): ...
"""
    extension(
        folder, "bad", "events: {subscribes: [{topic: x.y, handler: notify_user}]}", main=source
    )
    extension(folder, "child", "depends_on: [bad]\n" + NOTIFIES)
    extension(folder, "good", NOTIFIES)

    async def story():
        async with hosting(patience=0.05) as host:
            await host.bus.publish("x.y", "me", {})
            await host.bus.publish("reminder.due", "me", {"text": "hello"})
            return await settled(host), host.health(), host.channels.names

    entries, health, channels = run(story())

    assert {name: each["state"] for name, each in health.items()} == {
        "bad": "broken",
        "child": "broken",
        "good": "running",
    }
    [reason] = health["bad"]["reasons"]
    assert f"{folder / 'bad'}: {method}() " in reason
    assert "depends_on: bad is broken; mend bad" in health["child"]["reasons"][0]
    assert [each["status"] for each in entries] == ["done", "done"]
    assert user.texts == ["hello"], "once: the child's subscription is gone"
    assert channels == ["home"]


@pytest.mark.parametrize("method", ["initialize", "start", "stop"])
def test_one_that_does_not_heed_its_cancellation_is_left_to_itself(folder, hosting, user, method):
    source = f"""
import asyncio

class Extension:
    async def initialize(self, context): ...

    async def {method}(self, *context):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.Event().wait()
"""
    extension(folder, "a", main=source)
    extension(folder, "b", NOTIFIES)

    async def story():
        async with hosting(patience=0.05) as host:
            await host.bus.publish("reminder.due", "me", {"text": "hello"})
            await settled(host)
        return host.health()

    health = run(story())

    assert user.texts == ["hello"]
    assert health["a"]["state"] == ("stopped" if method == "stop" else "broken")
    assert health["b"]["state"] == "stopped"


def test_what_cannot_be_loaded_is_shown_with_its_reason_and_logged(folder, hosting, caplog):
    extension(folder, "bad", "nonsense: 1")
    extension(folder, "good")

    async def story():
        async with hosting() as host:
            return host.health()

    health = run(story())

    assert health["bad"]["state"] == "broken"
    assert "nonsense: is no key of a manifest" in health["bad"]["reasons"][0]
    assert health["good"] == {"state": "running", "reasons": []}
    assert "extension bad is broken: " in caplog.text


def test_one_that_does_not_stop_keeps_nobody(folder, hosting, caplog):
    extension(
        folder,
        "a",
        main=FINE
        + "    async def stop(self):\n        import asyncio; await asyncio.Event().wait()\n",
    )
    extension(folder, "b", "depends_on: [a]", main=FINE + "    async def stop(self): 1 / 0\n")

    async def story():
        async with hosting(patience=0.05) as host:
            return host

    assert {each["state"] for each in run(story()).health().values()} == {"stopped"}
    assert "extension a: stop() did not end within 0.05 s" in caplog.text
    assert "extension b: stop() raised ZeroDivisionError: division by zero" in caplog.text


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return 1 / 0", "ZeroDivisionError: division by zero"),
        ("raise SystemExit(2)", "SystemExit: 2"),
    ],
)
def test_health_that_raises_is_told_as_such(folder, hosting, body, said):
    extension(folder, "a", main=FINE + f"    def health(self): {body}\n")

    async def story():
        async with hosting() as host:
            return host.health()

    assert run(story())["a"]["health"] == {"error": f"health() raised {said}"}


def test_events_wait_while_no_extension_runs(folder, hosting):
    bad = extension(folder, "bad", main="1 / 0")

    async def story():
        async with hosting() as host:
            before = host.bus.health()["running"]
            await host.bus.publish("say", "me", {})
            extension(folder, "bad", main=SAYS % "at last")
            await host.reload(bad)
            return before, await said(host)

    assert run(story()) == (False, ["at last"])


def test_a_folder_without_extensions_is_an_error(folder, hosting):
    folder.mkdir()

    async def story():
        async with hosting():
            pass

    with pytest.raises(NotFoundError, match="there are no extensions in"):
        run(story())


@pytest.mark.req("BUS-058")
def test_what_was_published_before_is_delivered_when_all_are_initialized(
    folder, uri, hosting, user
):
    extension(folder, "reminders", NOTIFIES)

    async def story():
        bus = EventBus(uri)
        await bus.recover()  # a bus that was there once
        await bus.publish("reminder.due", "me", {"text": "from before"})
        await bus.close()
        async with hosting() as host:
            await settled(host)

    run(story())

    assert user.texts == ["from before"]


def test_permissions_of_the_manifest_are_those_of_the_context(folder, hosting):
    extension(
        folder,
        "meek",
        """
        events: {subscribes: [{topic: go, handler: custom}]}
        permissions: {subscribe: [go]}
        """,
        main="""
class Extension:
    async def initialize(self, context):
        self.ctx = context
        context.subscribe_event("go", self.go)

    async def go(self, event):
        await self.ctx.emit("secret", {})
""",
    )

    async def story():
        async with hosting() as host:
            await host.bus.publish("go", "me", {})
            return await settled(host)

    [entry] = run(story())

    assert "PermissionDeniedError" in entry["error"]
    assert "secret" in entry["error"]


def test_a_reason_says_where_it_was_raised_and_what_helps(folder, hosting):
    extension(
        folder,
        "meek",
        "permissions: {}",
        main="""
class Extension:
    async def initialize(self, context):
        context.subscribe_event("go", self.initialize)
""",
    )

    async def story():
        async with hosting() as host:
            return host.health()["meek"]["reasons"]

    [reason] = run(story())

    assert "initialize() raised PermissionDeniedError: " in reason
    assert "(main.py, line 4); " in reason
    assert reason.endswith("Add to its manifest: permissions.subscribe: - go")


def test_an_extension_takes_no_channel_that_is_there(folder, hosting, user):
    extension(folder, "home", main=FINE + "    async def send(self, text, channel_id=None): ...\n")
    extension(folder, "reminders", NOTIFIES)

    async def story():
        async with hosting() as host:
            await host.bus.publish("reminder.due", "me", {"text": "hello"})
            await settled(host)
            return host.health()["home"]

    health = run(story())

    assert user.texts == ["hello"]
    assert "id: is the name of a channel that is there; choose another" in health["reasons"][0]


def test_a_method_with_other_arguments_breaks_its_own_extension_alone(folder, hosting):
    extension(folder, "bad", main="class Extension:\n    async def initialize(self): ...\n")
    extension(folder, "good")

    async def story():
        async with hosting() as host:
            return host.health()["bad"]["reasons"], host.running

    [reason], running = run(story())

    assert "initialize() raised TypeError: Extension.initialize() takes 1 positional" in reason
    assert running == ["good"]


def test_an_extension_that_can_send_is_a_channel(folder, hosting, user):
    extension(
        folder,
        "pager",
        main=FINE
        + """
    async def send(self, text, channel_id=None):
        await self.ctx.emit("paged", {"text": text, "to": channel_id})
""",
    )
    extension(folder, "reminders", NOTIFIES)

    async def story():
        async with hosting() as host:
            payload = {"text": "up", "channel_id": "pager:ada"}
            await host.bus.publish("reminder.due", "me", payload)
            await settled(host, "reminder.due")
            return await settled(host, "paged")

    [paged] = run(story())

    assert paged["payload"]["to"] == "pager:ada"
    assert user.texts == []


# -- the terminal --------------------------------------------------------------------------------


@pytest.mark.req("BUS-059", "BUS-060")
def test_lines_that_are_typed_become_user_messages_and_answers_are_printed(folder, hosting):
    extension(
        folder,
        "echo",
        "events: {subscribes: [{topic: user.message, handler: invoke_agent}]}",
        main=FINE + "    async def run(self, event): return event.payload['text'].upper()\n",
    )
    printed, channels = [], Channels()
    terminal = TerminalChannel(printed.append)
    channels.add("cli_channel", terminal)
    reading, typing = os.pipe()

    async def story():
        async with hosting(channels=channels) as host:
            terminal.listen(host.bus, reading)
            os.write(typing, b"hello\n\n  \nGr" + "ü".encode()[:1])
            os.write(typing, "üße".encode()[1:] + b"\nno \0 text\nlast")
            os.close(typing)
            await eventually(lambda: len(printed) == 3)
            return await settled(host)

    entries = run(story())
    os.close(reading)

    assert printed == ["HELLO", "GRÜSSE", "LAST"]
    assert {each["source"] for each in entries} == {"cli_channel"}
    assert [each["topic"] for each in entries] == ["user.message"] * 3
    payload = entries[0]["payload"]
    assert payload["channel_id"] == "cli_channel"
    assert payload["user_id"]


def test_a_terminal_that_is_closed_publishes_nothing_more(folder, hosting):
    extension(folder, "quiet")
    terminal = TerminalChannel(lambda text: None)
    reading, typing = os.pipe()

    async def story():
        async with hosting() as host:
            terminal.listen(host.bus, reading)
            terminal.close()
            os.write(typing, b"hello\n")
            os.close(typing)
            await asyncio.to_thread(_wait_for_thread, "cli_channel")
            return await host.bus.journal.list()

    assert run(story()) == []
    os.close(reading)


def _wait_for_thread(name):
    import threading

    for thread in threading.enumerate():
        if thread.name == name:
            thread.join(PATIENCE)


# -- reloading -----------------------------------------------------------------------------------

SAYS = """
class Extension:
    async def initialize(self, context):
        self.ctx = context
        context.subscribe_event("say", self.say)

    async def say(self, event):
        await self.ctx.emit("said", {"what": "%s"})
"""


async def said(host):
    entries = await settled(host)
    return [each["payload"]["what"] for each in entries if each["topic"] == "said"]


def test_a_changed_extension_is_replaced_and_the_others_are_not(folder, hosting):
    changing = extension(folder, "changing", main=SAYS % "old")
    extension(folder, "steady", main=SAYS % "steady")

    async def story():
        async with hosting() as host:
            steady = next(each for each in host._hosted if each.loaded.id == "steady")
            before = {*sys.modules}
            extension(folder, "changing", main=SAYS % "new")
            await host.reload(changing)
            await host.bus.publish("say", "me", {})
            kept = any(each is steady for each in host._hosted)
            gone = before - {*sys.modules}
            return await said(host), kept, gone

    words, kept, gone = run(story())

    assert sorted(words) == ["new", "steady"]
    assert kept
    assert any("changing" in name for name in gone), "the old code is let go of"


@pytest.mark.parametrize(
    "source",
    ["raise ValueError('no')", "def", "class Extension: ..."],
    ids=["raises", "syntax", ""],
)
def test_a_version_that_cannot_be_loaded_leaves_the_one_before(folder, hosting, source, caplog):
    changing = extension(folder, "changing", main=SAYS % "old")

    async def story():
        async with hosting() as host:
            extension(folder, "changing", main=source)
            await host.reload(changing)
            await host.bus.publish("say", "me", {})
            return await said(host), host.running

    assert run(story()) == (["old"], ["changing"])
    assert "extension changing goes on as it was: " in caplog.text


def test_no_event_passes_by_while_an_extension_is_replaced(folder, hosting):
    source = SAYS + "    async def stop(self):\n        await self.ctx.emit('say', {})\n"
    slow = "import asyncio\n" + SAYS.replace("self.ctx =", "await asyncio.sleep(0.2); self.ctx =")
    changing = extension(folder, "changing", main=source % "old")

    async def story():
        async with hosting() as host:
            extension(folder, "changing", main=slow % "new")
            await host.reload(changing)  # the old one's last word is a question
            return await said(host)

    assert run(story()) == ["new"]


def test_a_version_that_was_replaced_cannot_subscribe_any_more(folder, hosting):
    changing = extension(folder, "changing", main=SAYS % "old")

    async def story():
        async with hosting() as host:
            old = host._hosted[0].loaded.instance
            extension(folder, "changing", main=SAYS % "new")
            await host.reload(changing)
            with pytest.raises(ExtensionError, match="changing was stopped, and hears nothing"):
                old.ctx.subscribe_event("say", old.say)
            await host.bus.publish("say", "me", {})
            return await said(host)

    assert run(story()) == ["new"]


def test_one_that_was_broken_starts_when_it_is_mended_and_so_do_those_that_waited(folder, hosting):
    bad = extension(folder, "bad", main="1 / 0")
    extension(folder, "child", "depends_on: [bad]", main=SAYS % "child")
    extension(folder, "grandchild", "depends_on: [child]")

    async def story():
        async with hosting() as host:
            assert host.running == []
            extension(folder, "bad", main=SAYS % "mended")
            await host.reload(bad)
            await host.bus.publish("say", "me", {})
            return sorted(await said(host)), host.running

    assert run(story()) == (["child", "mended"], ["bad", "child", "grandchild"])


def test_one_waits_for_what_it_depends_on_to_come_and_stops_when_that_goes(folder, hosting):
    parent = folder / "parent"
    extension(folder, "child", "depends_on: [parent]", main=SAYS % "child")
    extension(folder, "grandchild", "depends_on: [child]")
    extension(folder, "other")

    async def story():
        async with hosting() as host:
            seen = [sorted(host.running)]
            for source in (FINE, FINE + "        1 / 0\n", FINE):
                extension(folder, "parent", main=source)
                await host.reload(parent)
                seen.append(sorted(host.running))
            (parent / "manifest.yaml").unlink()
            await host.reload(parent)
            seen.append(sorted(host.running))
            await host.bus.publish("say", "me", {})
            return seen, await said(host), host.health()

    seen, words, health = run(story())

    everybody = ["child", "grandchild", "other", "parent"]
    assert seen == [["other"], everybody, ["other"], everybody, ["other"]]
    assert words == []
    assert "there is no extension parent" in health["child"]["reasons"][0]
    assert "child is broken; mend child" in health["grandchild"]["reasons"][0]


def test_a_reload_that_would_close_a_circle_or_take_an_id_is_refused(folder, hosting, caplog):
    a = extension(folder, "a")
    extension(folder, "b", "depends_on: [a]")

    async def story():
        async with hosting() as host:
            extension(folder, "a", "depends_on: [b]")
            await host.reload(a)
            extension(folder, "a", "id: b")
            await host.reload(a)
            return host.running

    assert run(story()) == ["a", "b"]
    assert "goes in a circle: a → b → a" in caplog.text
    assert "b is the id of another extension" in caplog.text


def test_files_that_change_come_and_go_are_seen_and_acted_on(folder, hosting):
    extension(folder, "one", main=SAYS % "old")

    async def story():
        async with hosting() as host:
            watching = asyncio.create_task(watch(host, stamps(folder), interval=0.001))
            old = host._hosted[0]
            extension(folder, "one", main=SAYS % "new, and longer")
            await eventually(lambda: host._hosted and host._hosted[0] is not old)
            extension(folder, "two", NOTIFIES)
            await eventually(lambda: "two" in host.running)
            (folder / "one" / "manifest.yaml").unlink()
            await eventually(lambda: host.running == ["two"])
            await host.bus.publish("say", "me", {})
            words = await said(host)
            watching.cancel()
            return words

    assert run(story()) == []


@pytest.mark.parametrize("name", ["a", "z"])
def test_a_folder_that_is_renamed_has_its_extension_running(folder, hosting, name):
    place = extension(folder, "middle", "id: same", main=SAYS % "one")
    extension(folder, "child", "depends_on: [same]", main=SAYS % "child")

    async def story():
        async with hosting() as host:
            watching = asyncio.create_task(watch(host, stamps(folder), interval=0.001))
            place.rename(folder / name)
            folders = {folder / name, folder / "child"}
            await eventually(
                lambda: {each.loaded.folder for each in host._hosted if each.running} == folders
            )
            await eventually(lambda: host.bus.health()["running"])
            await host.bus.publish("say", "me", {})
            words = await said(host)
            watching.cancel()
            return sorted(words)

    assert run(story()) == ["child", "one"]


def test_a_change_that_could_not_be_acted_on_is_tried_again(folder, hosting, monkeypatch, caplog):
    extension(folder, "one", main=FINE)
    extension(folder, "two")

    async def story():
        async with hosting() as host:
            start, refusals = host.bus.start, ["away", "still away"]

            async def start_later():
                if refusals:
                    raise ConnectionLostError(f"the server is {refusals.pop(0)}")
                await start()

            monkeypatch.setattr(host.bus, "start", start_later)
            watching = asyncio.create_task(watch(host, stamps(folder), interval=0.001))
            (folder / "one" / "manifest.yaml").unlink()
            await eventually(lambda: host.bus.health()["running"] and host.running == ["two"])
            watching.cancel()
            return refusals

    assert run(story()) == []
    assert "one was not reloaded, and will be tried again: the server is still away" in caplog.text


def test_a_change_is_acted_on_once(folder, hosting, monkeypatch):
    extension(folder, "one", main=FINE)
    looks = []

    def looked(place):
        looks.append(place)
        return stamps(place)

    monkeypatch.setattr("ontologia.extensions.watching.stamps", looked)

    async def story():
        async with hosting() as host:
            old = host._hosted[0]
            watching = asyncio.create_task(watch(host, {}, interval=0.001))
            await eventually(lambda: host._hosted and host._hosted[0] is not old)
            new, so_far = host._hosted[0], len(looks)
            await eventually(lambda: len(looks) > so_far + 3)
            watching.cancel()
            return host._hosted == [new]

    assert run(story())


def test_only_code_and_manifests_are_watched(folder):
    place = extension(folder, "one", main=FINE)
    (folder / "notes").mkdir()
    before = stamps(folder)

    (place / "data.json").write_text("{}")
    (place / "__pycache__").mkdir()
    (place / "__pycache__" / "main.py").touch()
    (place / ".git").mkdir()
    (place / ".git" / "x.py").touch()

    assert stamps(folder) == before
    assert [*before] == [place]
    assert len(before[place]) == 2


# -- settings ------------------------------------------------------------------------------------


def test_settings_are_those_of_the_context_and_strange_variables_are_told_of(
    folder, hosting, caplog
):
    extension(folder, "a", "settings: {pause: {type: number, default: 8}}", main=FINE)
    variables = {"ONTOLOGIA_EXT_A_PAUSE": "0.5", "ONTOLOGIA_EXT_A_PUASE": "1"}

    async def story():
        async with hosting(environment=variables) as host:
            return dict(host._hosted[0].loaded.instance.ctx.settings)

    caplog.set_level(logging.WARNING)
    assert run(story()) == {"pause": 0.5}
    assert "ONTOLOGIA_EXT_A_PUASE is no setting of these extensions" in caplog.text


def test_a_host_leaves_the_session_it_was_given_open(folder, uri):
    extension(folder, "reminders", NOTIFIES)

    async def story(session):
        bus = EventBus(session)
        async with Host(folder, bus, environment={}):
            pass
        await bus.close()

    with Session(uri) as session:
        run(story(session))
        assert session.head == 0
