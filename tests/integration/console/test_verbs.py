"""What an operator does in the console is what the command line does, recorded with who and why."""

from __future__ import annotations

import re
from html import unescape

import pytest

from ontologia.cli.main import app as cli
from tests.integration.console.world import HOST, SAME_ORIGIN, browsing, opened, vic


def hidden(page) -> dict[str, list[str]]:
    """The hidden fields of the form that a page asks with."""
    form = page.text[page.text.index('id="confirm"') :]
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', form):
        found.setdefault(name, []).append(unescape(value))
    return found


def command(page) -> list[str]:
    """The command lines that a page shows."""
    shown = page.text[page.text.index('class="command"') :]
    shown = shown[shown.index("<code>") + 6 : shown.index("</code>")]
    return unescape(shown).replace("--reason TEXT", "--reason why").split("\n")[:-1]


def dead(session) -> list[str]:
    found = session.event_store.list_dead_letters(session.namespace)
    return sorted(each["event_id"] for each in found)


def last_commit(session):
    metadata = dict(session.list_commits(limit=1)[0]["metadata"])
    del metadata["session_id"]
    return metadata


def ask(desk, verb: str, **query):
    page = desk.get(f"/ask/{verb}", params=query)
    assert page.status_code == 200, page.text
    return page


def act(desk, verb: str, reason: str | None = "why", **query):
    page = ask(desk, verb, **query)
    fields = hidden(page) | ({} if reason is None else {"reason": reason})
    if verb == "emit":
        fields |= query
    return desk.post(f"/do/{verb}", fields)


def event_of(session, order: str) -> str:
    events = session.event_store
    for each in events.list_events(session.namespace, limit=100):
        if events.inspect_event(each["id"])["payload"].get("order_id") == order:
            return each["id"]
    raise AssertionError(order)


VERBS = {
    "pause": lambda shop: {"handler": "pack"},
    "forget": lambda shop: {"handler": "pack"},
    "replay": lambda shop: {"id": event_of(shop, "o-0")},
    "cancel": lambda shop: {"id": event_of(shop, "o-9")},
    "retry": lambda shop: {"id": event_of(shop, "o-1")},
    "dismiss": lambda shop: {"handler": "bill", "error": "owes us"},
    "emit": lambda shop: {"type": "placed", "payload": '{"order_id":"o-5"}', "dedup_key": "k"},
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.req("NEW-217")
def test_a_verb_leaves_the_commit_of_the_command_line(verb, desk, shop, uri, open_session):
    """The page shows the command; what both record differs in who, in `via`, and in what is new."""
    from typer.testing import CliRunner

    query = VERBS[verb](shop)
    page = ask(desk, verb, **query)
    [shown] = command(page)
    reason = "why" if "--reason" in shown else None
    answer = act(desk, verb, reason, **query)
    assert answer.status_code == 303, answer.text
    mine = last_commit(shop)
    assert mine["via"] == "console"
    assert mine["operator"] == "ada"
    assert desk.get(answer.headers["location"]).text.count("recorded as commit") == 1
    undo(verb, shop, query)

    import shlex

    words = shlex.split(shown)[1:]
    if verb == "emit":  # its dedup_key is taken now
        words[words.index("k")] = "k2"
        mine["arguments"]["dedup_key"] = "k2"
    if verb == "cancel":
        words[words.index(query["id"])] = event_of(shop, "o-9")
    result = CliRunner().invoke(cli, [*words, "--datastore-uri", uri])
    assert result.exit_code == 0, result.output
    theirs = last_commit(shop)
    for each in (mine, theirs):
        each.pop("via", None)
        each.pop("operator")
        each.pop("new_event_id", None)
        each.pop("emitted", None)
        each.get("arguments", {}).pop("until", None)  # the console's preview is pinned
        each.get("cancelled", {}).pop("id", None)
        each.get("cancelled", {}).pop("created_at", None)
        if verb == "cancel":
            each.pop("arguments")
    assert mine == theirs


def undo(verb, shop, query) -> None:
    """Have it as it was, so that the command line can do the same."""
    from ontologia.runtime.operator import Operator
    from tests.integration.console.conftest import Placed, bill, pack

    if verb == "pause":
        Operator(shop, "eve").resume("pack")
    elif verb == "forget":
        shop.run([bill, pack], max_iterations=20)
        shop.run([bill], max_iterations=1)
    elif verb == "cancel":
        shop.commit(event=Placed(order_id="o-9", amount=2**53 + 1, note="<b>late</b>"))
    elif verb == "retry":
        shop.run([bill, pack], max_iterations=20)
    elif verb == "dismiss":
        for number in (1, 2):
            shop.commit(event=Placed(order_id=f"o-{number}", amount=-1))
        shop.run([bill, pack], max_iterations=20)


def test_a_group_is_retried_as_it_was_counted(desk, shop):
    page = desk.get("/dead-letters")
    token = unescape(
        re.search(
            r'action="/ask/retry"[^>]*>\s*<input type="hidden" name="group" value="([^"]*)"',
            page.text,
        )[1]
    )
    before = dead(shop)
    asked = ask(desk, "retry", group=token)
    number = int(re.search(r"Retry (\d+)</button>", asked.text)[1])
    assert number == 2
    answer = desk.post("/do/retry", hidden(asked) | {"reason": "fixed"})
    assert answer.status_code == 303
    assert len(before) - len(dead(shop)) == number
    assert last_commit(shop)["counts"] == {"retried": number}


def test_what_died_after_the_preview_is_left_alone(desk, shop, clock):
    from tests.integration.console.conftest import Placed, bill, pack

    asked = ask(desk, "dismiss", handler="bill")
    assert "3 dead letters" in asked.text
    clock.advance(seconds=1)
    shop.commit(event=Placed(order_id="o-10", amount=-1))
    shop.run([bill, pack], max_iterations=20)
    assert len(dead(shop)) == 4
    assert desk.post("/do/dismiss", hidden(asked) | {"reason": "old"}).status_code == 303
    assert dead(shop) == [event_of(shop, "o-10")]


def test_those_that_are_ticked_are_meant_and_no_others(desk, shop):
    page = desk.get("/dead-letters")
    tokens = [unescape(each) for each in re.findall(r'name="letter" value="([^"]*)"', page.text)]
    assert len(tokens) == 3
    asked = ask(desk, "dismiss", letter=tokens[:2])
    assert len(command(asked)) == 2
    assert desk.post("/do/dismiss", hidden(asked) | {"reason": "x"}).status_code == 303
    assert len(dead(shop)) == 1


def test_bulk_and_destructive_verbs_need_a_reason(desk, shop):
    before = shop.head
    answer = act(desk, "dismiss", reason=None, handler="bill")
    assert answer.status_code == 400
    assert "Say why" in answer.text
    assert act(desk, "forget", reason="  ", handler="pack").status_code == 400
    assert shop.head == before
    assert act(desk, "pause", reason=None, handler="pack").status_code == 303


def test_what_was_done_before_is_not_done_again(desk, shop):
    act(desk, "pause", handler="pack")
    before = shop.head
    answer = act(desk, "pause", handler="pack")
    assert answer.status_code == 200
    assert "pack was paused already." in answer.text
    assert shop.head == before


@pytest.mark.parametrize(
    ("verb", "query", "status"),
    [
        ("pause", {"handler": "nobody"}, 404),
        ("replay", {"id": "nothing"}, 404),
        ("emit", {"type": "placed", "payload": "[1]"}, 400),
        ("emit", {"type": "placed", "payload": "{"}, 400),
    ],
)
def test_what_cannot_be_done_says_so(verb, query, status, desk, shop):
    before = shop.head
    fields = {"form_token": hidden(ask(desk, "pause", handler="pack"))["form_token"], "reason": "x"}
    answer = desk.post(f"/do/{verb}", fields | query)
    assert answer.status_code == status, answer.text
    assert "nothing was" in answer.text or "not JSON" in answer.text
    assert shop.head == before


def forged(desk, **change):
    fields = hidden(ask(desk, "pause", handler="pack"))
    headers = {k: v for k, v in (SAME_ORIGIN | change.pop("headers", {})).items() if v}
    return desk.post("/do/pause", fields | change, headers=headers)


@pytest.mark.parametrize(
    "change",
    [
        {"form_token": ""},
        {"form_token": "0" * 64},
        {"form_token": "ä"},
        {"headers": {"Origin": "http://evil.example"}},
        {"headers": {"Origin": HOST + ".evil.example"}},
        {"headers": {"Origin": "null"}},
        {"headers": {"Sec-Fetch-Site": "cross-site"}},
        {"headers": {"Sec-Fetch-Site": "none"}},
        {"headers": {"Sec-Fetch-Site": None, "Origin": None}},
    ],
)
@pytest.mark.req("NEW-217")
def test_a_forged_form_changes_nothing(change, desk, shop):
    before = shop.head
    assert forged(desk, **change).status_code == 403
    assert shop.head == before


def test_a_form_of_somebody_else_changes_nothing(desk, shop):
    from ontologia.web import User

    before = shop.head
    app = opened(shop, identify=lambda scope: User("eve", "operator"))
    with browsing(app) as eve:
        token = hidden(ask(eve, "pause", handler="pack"))["form_token"]
    assert forged(desk, form_token=token).status_code == 403
    assert shop.head == before


@pytest.mark.req("NEW-217")
def test_a_viewer_sees_and_changes_nothing(shop):
    before = shop.head
    app = opened(shop, identify=vic)
    with browsing(app) as browser:
        for path in ("/", "/handlers", "/dead-letters", f"/event?id={event_of(shop, 'o-1')}"):
            page = browser.get(path)
            assert page.status_code == 200
            assert "/ask/" not in page.text, path
        assert browser.get("/ask/pause", params={"handler": "pack"}).status_code == 403
        answer = browser.post("/do/pause", {"handler": "pack", "form_token": "x"})
        assert answer.status_code == 403
        assert "vic is a viewer" in answer.text
    assert shop.head == before


def test_a_console_that_only_reads_has_no_post(shop):
    app = opened(shop, read_only=True)
    with browsing(app) as browser:
        assert browser.get("/handlers").status_code == 200
        assert "/ask/" not in browser.get("/handlers").text
        assert browser.get("/ask/pause").status_code == 404
        assert browser.post("/do/pause", {"handler": "pack"}).status_code == 404
    assert not [each for each in app._paths if each.startswith(("do_", "ask_"))]


def test_it_acts_in_the_namespace_that_is_shown(desk, shop, open_session):
    from tests.integration.console.conftest import bill

    other = open_session(namespace="other")
    other.run([bill], max_iterations=1)
    answer = act(desk, "pause", handler="bill", namespace="other")
    assert answer.status_code == 303
    assert "namespace=other" in answer.headers["location"]
    assert last_commit(shop)["namespace"] == "other"
    [row] = other.event_store.list_consumers("other")
    assert row["paused_at"] is not None
