"""Types, objects and commits in the console; now, and at any commit of the past."""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal
from html import unescape
from html.parser import HTMLParser
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from ontologia import Entity, Field, Relation, Session
from ontologia.runtime.operator import Operator
from ontologia.runtime.session import core_of
from ontologia.schema.typespec import TypeSpec
from tests.integration.console.world import browsing, opened, vic
from tests.integration.explained import Buys, Customer, Note, Product, fill

HOSTILE = [
    '"><img src=x onerror=alert(1)>',
    "</script><script>alert(1)</script>",
    "javascript:alert(1)",
    "' onmouseover='alert(1)",
    "{{ 7 * 7 }}",
    "\u202etxt.exe",
]


class Account(Entity):
    __open__ = True
    id: Field[str]
    balance: Field[Decimal]
    number: Field[int]
    secret: Field[str] = Field(default="")
    profile: Field[dict[str, object]] = Field(default_factory=dict)


@pytest.fixture
def shop(open_session, clock):
    """Commits 1 to 3: an order that was paid at the second attempt, and shipped."""
    session = open_session(namespace="shop")
    fill(session, clock)
    return session


@pytest.fixture
def desk(shop):
    app = opened(shop)
    with browsing(app) as browser:
        yield browser
    app.close()


class Page(HTMLParser):
    """What a browser would make of a page: its text, its links, and what could run."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.links: dict[str, str] = {}
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._open: str | None = None
        self.feed(text)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append((tag, found))
        if tag == "a":
            self._open = found.get("href")

    def handle_data(self, data: str) -> None:
        self.words.append(data)
        if self._open is not None and data.strip():
            self.links.setdefault(data.strip(), self._open)
            self._open = None


def read(desk: Any, path: str, *, status: int = 200, **query: Any) -> Page:
    answer = desk.get(f"{path}?{urlencode(query, doseq=True)}" if query else path)
    assert answer.status_code == status, answer.text
    return Page(answer.text)


# -- types and lists ------------------------------------------------------------------------------


def test_types_are_shown_with_counts_fields_and_ends(desk):
    page = read(desk, "/types")

    assert "Customer id name , profile , tier 1 2" in page.text
    assert "Buys Customer → Product pieces 1 1" in page.text
    assert "schema" in read(desk, page.links["Customer"].split("?")[0], type="Customer").text


def test_objects_come_in_pages_of_fifty(desk, shop):
    shop.ensure([Customer(id=f"x{n:03}", name="Eve") for n in range(70)])
    shop.commit()

    first = read(desk, "/objects", kind="entity", type="Customer")
    second = read(desk, first.links["Next page"])

    shown = [
        name for name in (*first.links, *second.links) if name[0] in "cx" and name[1].isdigit()
    ]
    assert shown == ["c1", "c2", *(f"x{n:03}" for n in range(70))]
    assert len([name for name in second.links if name.startswith("x")]) == 22
    assert "Next page" not in second.links


def test_objects_are_filtered_as_on_the_command_line_and_ordered(desk):
    def keys(**query: Any) -> list[str]:
        page = read(desk, "/objects", kind="entity", type="Customer", **query)
        return [name for name in page.links if name in ("c1", "c2")]

    assert keys(filter="tier eq gold") == ["c1"]
    assert keys(filter="profile.city.name is_not_null") == ["c1"]
    assert keys(filter=["tier ne gold", "name startswith B"]) == ["c2"]
    assert keys(filter="tier eq gold", as_of=1) == []
    assert keys(order="name:desc") == ["c2", "c1"]
    wrong = read(desk, "/objects", type="Customer", filter="nothing eq 1", status=400)
    assert "Customer has no field 'nothing'" in wrong.text
    assert (
        "a filter is PATH OP VALUE"
        in read(desk, "/objects", type="Customer", filter="tier", status=400).text
    )


def test_relations_of_the_past_come_in_pages(desk, shop):
    shop.ensure([Buys(left_key=f"x{n:02}", right_key="9", pieces=n) for n in range(60)])
    shop.commit()
    shop.ensure([Buys(left_key=f"x{n:02}", right_key="9", pieces=-1) for n in range(60)])
    shop.ensure(Buys(left_key="x", right_key="9", pieces=0))
    shop.commit()

    first = read(desk, "/objects", kind="relation", type="Buys", as_of=4)
    second = read(desk, first.links["Next page"])

    keys = ["c1:10", *(f"x{n:02}:9" for n in range(60))]
    assert [each for each in (*first.links, *second.links) if ":" in each] == keys
    assert "x59:9 59 4" in second.text


def test_a_type_that_is_not_there_is_not_found(desk):
    assert "Did you mean Customer?" in read(desk, "/objects", type="Custome", status=404).text
    read(desk, "/objects", kind="script", type="Customer", status=400)


@pytest.mark.parametrize(
    ("kind", "query"),
    [
        ("entity", {"type": "Product", "filter": ["price ge 0.95", "since is_null"]}),
        ("entity", {"type": "Customer", "filter": "tier in standard,gold", "order": "name:desc"}),
        ("entity", {"type": "Customer", "filter": "profile.city.name eq Bern", "as_of": 1}),
        ("relation", {"type": "Buys", "filter": "left.name eq Ada"}),
        ("relation", {"type": "Note", "filter": ["right_key eq c:2", "role like fr%"]}),
    ],
)
def test_a_list_is_copied_as_python_that_finds_the_same(desk, shop, kind, query):
    from ontologia import left

    answer = desk.get(f"/objects?{urlencode({'kind': kind} | query, doseq=True)}")
    code = unescape(answer.text.split('<pre class="command"><code>')[1].split("</code>")[0])

    names = {"Customer": Customer, "Product": Product, "Buys": Buys, "Note": Note}
    found = eval(code, {"session": shop, "Decimal": Decimal, "left": left} | names)  # noqa: S307

    assert found
    shown = Page(answer.text).links
    for each in found:
        meta = each.meta()
        parts = (meta.left_key, meta.right_key, meta.instance_key)
        assert (meta.key or ":".join(filter(None, parts))) in shown


# -- one object -----------------------------------------------------------------------------------


def test_each_field_says_when_and_by_whom_it_was_set(desk):
    page = read(desk, "/object", kind="entity", type="Customer", key="c1")

    assert page.text.count("attempt 2") >= 2  # tier, and the version
    rows = page.text[page.text.index("Field Value Set") :]
    assert re.search(r"tier gold \S+ \S+ ago in 2 pay attempt 2", rows)
    assert re.search(r"name Ada \S+ \S+ ago in 1 session", rows)
    labels = [found["aria-label"] for tag, found in page.tags if tag == "svg"]
    assert "2 changes, the last in commit 2" in labels


def test_why_leads_back_to_the_first_commit(desk):
    page = read(desk, "/object", type="Buys", kind="relation", key=["c1", "10", ""], why="pieces")

    why = page.text[page.text.index("Why pieces is so") :]
    order = ["pieces is 7", "commit 3", "ship", "attempt 1", '"customer":"c1"', "pay", "commit 1"]
    places = [why.index(each) for each in order]
    assert places == sorted(places)


def test_an_object_is_shown_as_it_was(desk):
    then = read(desk, "/object", type="Customer", key="c1", as_of=1)
    assert "tier standard" in then.text
    assert "gold" not in then.text
    assert "As of commit 1" in then.text
    first = read(desk, "/object", type="Buys", kind="relation", key=["c1", "10", ""], as_of=2)
    assert "pieces 1" in first.text


def test_what_came_later_is_said_to_have_come_later(desk, shop):
    shop.ensure(Customer(id="late", name="Eve"))
    shop.commit()

    page = read(desk, "/object", type="Customer", key="late", as_of=2)

    assert "There was no such object as of commit 2" in page.text
    assert "back to now" in page.links
    read(desk, "/object", type="Customer", key="never", status=404)
    read(desk, "/object", type="Customer", key="never", as_of=1, status=404)


def test_a_deleted_object_keeps_its_versions(desk, shop):
    shop.delete(shop.get(Customer, "c2"))
    shop.commit()

    page = read(desk, "/object", type="Customer", key="c2")

    assert "It is deleted." in page.text
    assert "Why it is deleted" in page.text
    assert "name Bob" in page.text
    assert "c2" not in read(desk, "/objects", type="Customer").links
    assert "name Bob" in read(desk, "/object", type="Customer", key="c2", as_of=3).text


def test_relations_are_shown_both_ways_and_the_rest_is_listed(desk, shop):
    shop.ensure([Customer(id=f"x{n}", name="Eve") for n in range(25)])
    shop.ensure([Buys(left_key=f"x{n}", right_key="10", pieces=n) for n in range(25)])
    shop.commit()

    customer = read(desk, "/object", type="Customer", key="c1")
    product = read(desk, "/object", type="Product", key="10")

    assert "Buys → Product" in customer.text
    assert "Note → Customer" in customer.text
    assert "Buys ← Customer" in product.text
    listed = read(desk, product.links["All Buys ← Customer"])
    assert sum(name.endswith(":10") for name in listed.links) == 26


def test_a_relation_is_found_by_the_exact_parts_of_its_key(desk, shop):
    shop.ensure(Note(left_key="c1:c", right_key="2", role="friend", text="another"))
    shop.commit()

    listed = read(desk, "/objects", type="Note", kind="relation")
    found = read(desk, "/object", type="Note", kind="relation", key=["c1", "c:2", "friend"])
    other = read(desk, "/object", type="Note", kind="relation", key=["c1:c", "2", "friend"])

    assert "met in Bern" in found.text
    assert "text another" in other.text
    assert "key=c1%3Ac&key=2&key=friend" in listed.links["c1:c:2:friend"] + "".join(
        str(each.get("href")) for _, each in listed.tags
    )
    read(desk, "/object", type="Note", kind="relation", key=["c1", "c:2"], status=400)


def test_two_versions_are_shown_side_by_side(desk):
    page = read(desk, "/object", type="Customer", key="c1", a=2, b=1)

    compared = page.text[page.text.index("Commits 1 and 2 side by side") :]
    assert "tier differs standard gold" in compared
    assert "name Ada Ada" in compared
    before = read(desk, "/object", type="Customer", key="c1", a=0, b=2)
    assert "not there yet" in before.text
    read(desk, "/object", type="Customer", key="c1", a="x", b=2, status=400)


def test_whole_numbers_are_exact_and_decimals_are_drawn(desk, shop):
    for n in range(3):
        shop.ensure(Account(id="a", balance=Decimal(n), number=2**63 - 1 - n))
        shop.commit()

    answer = desk.get("/object?type=Account&key=a")

    assert "9223372036854775805" in answer.text
    assert "<ins><code>9223372036854775806</code></ins>" in answer.text
    assert "commit 5: 1</title>" in answer.text


def test_an_open_object_shows_what_is_not_declared(desk, shop):
    shop.ensure(Account(id="a", balance=Decimal(1), number=1, nick="Al"))
    shop.commit()

    page = read(desk, "/object", type="Account", key="a", why="nick")

    assert "nick not declared Al" in page.text
    assert "nick is Al" in page.text
    assert "a" in read(desk, "/objects", type="Account", filter="nick eq Al").links


def test_an_object_of_an_older_schema_is_shown_without_its_upgrader(open_session, clock):
    class Item(Entity):
        id: Field[str]
        price: Field[int]

    session = open_session()
    session.ensure(Item(id="i", price=5))
    session.commit()
    session.close()

    class Item(Entity):  # type: ignore[no-redef]
        id: Field[str]
        cents: Field[int]

    def upgrade(fields: dict[str, Any]) -> dict[str, Any]:
        return {"id": fields["id"], "cents": fields["price"] * 100}

    newer = open_session(entity_types=[Item])
    newer.migrate(dry_run=False, force=True, upgraders={("Item", 1): upgrade})
    reader = open_session()
    app = opened(reader)
    with browsing(app) as desk:
        then = read(desk, "/object", type="Item", key="i", as_of=1)
        now = read(desk, "/object", type="Item", key="i")
        listed = read(desk, "/objects", type="Item", as_of=1)
        asked = {"filter": "cents eq 500", "as_of": 1}
        filtered = read(desk, "/objects", type="Item", status=400, **asked)
    app.close()

    assert "price" in then.text
    assert "no upgrader" in then.text
    assert "cents 500" in now.text
    assert "no upgrader" in listed.text
    assert "Item" in filtered.text


# -- commits --------------------------------------------------------------------------------------


def listed(page: Page) -> list[str]:
    """The commits that a page leads to."""
    links = [urlsplit(given.get("href") or "") for tag, given in page.tags if tag == "a"]
    return [parse_qs(link.query)["id"][0] for link in links if link.path == "/commit"]


def test_commits_are_listed_newest_first_and_filtered(desk):
    assert listed(read(desk, "/commits")) == ["3", "2", "1"]
    assert listed(read(desk, "/commits", as_of=2)) == ["2", "1"]
    assert listed(read(desk, "/commits", filter="handler:pay")) == ["2"]
    assert "is no condition" in read(desk, "/commits", filter="pay", status=400).text


def test_a_commit_says_who_made_it_what_it_changed_and_emitted(desk, shop):
    first = read(desk, "/commit", id=1)
    second = read(desk, "/commit", id=2)

    assert "created Customer c1 id c1 name Ada" in first.text
    assert "ordered" in first.text  # the event that was emitted with it
    assert "2 →" in first.links
    assert "updated Customer c1 tier standard → gold" in second.text
    assert "pay attempt 2" in second.text
    assert "← 1" in second.links
    read(desk, "/commit", id=4, status=404)
    read(desk, "/commit", id="x", status=404)
    assert desk.get("/commit/time?id=2").text.endswith(" UTC")


def test_a_large_commit_comes_in_pages(desk, shop):
    shop.ensure([Customer(id=f"x{n:03}", name="Eve") for n in range(55)])
    shop.ensure([Buys(left_key=f"x{n:03}", right_key="9", pieces=n) for n in range(55)])
    shop.commit()

    seen, page = list[str](), read(desk, "/commit", id=4)
    seen += [name for name in page.links if name.startswith("x")]
    for _ in range(2):
        page = read(desk, page.links["Next page"])
        seen += [name for name in page.links if name.startswith("x")]

    keys = [f"x{n:03}" for n in range(55)]
    assert seen == [*keys, *(f"{key}:9" for key in keys)]
    assert "Next page" not in page.links


def test_the_commit_of_an_operator_gives_the_reason(desk, shop):
    Operator(shop, "ada", reason="the bank is down").pause("pay")

    assert "the bank is down" in read(desk, "/commits").text
    assert "It changed no object." in read(desk, "/commit", id=shop.head).text


# -- time -----------------------------------------------------------------------------------------


def test_the_past_stays_on_every_link(desk):
    page = read(desk, "/object", type="Customer", key="c1", as_of=2)

    kept = {name: link for name, link in page.links.items() if link.startswith("/")}
    assert "as_of" not in kept.pop("back to now")
    assert "as_of=1" in kept.pop("←")
    assert "as_of" not in kept.pop("→")  # that is the head
    assert "as_of" not in kept.pop("Ontologia")
    assert all("as_of=2" in link for link in kept.values()), kept


def test_a_time_can_be_asked_for(desk, shop):
    when = shop.get_commit(2)["created_at"] - timedelta(seconds=1)

    page = read(desk, "/object", type="Customer", key="c1", as_of=when.isoformat())

    assert f"As of commit 1, {when:%Y-%m-%d %H:%M:%S} UTC" in page.text.replace(" ,", ",")
    read(desk, "/types", as_of="yesterday", status=400)


def test_a_page_of_the_present_says_so(desk):
    for path in ("/sessions", "/types"):
        assert "This page cannot show the past" in read(desk, path, as_of=1).text
    assert "cannot show the past" not in read(desk, "/commits", as_of=1).text


# -- whatever is stored ---------------------------------------------------------------------------


def paths(session: Session, kind: str, name: str, key: list[str]) -> list[str]:
    of_type = {"kind": kind, "type": name}
    return [
        "/types",
        f"/objects?{urlencode(of_type)}",
        f"/object?{urlencode(of_type | {'key': key}, doseq=True)}",
        f"/object?{urlencode(of_type | {'key': key, 'why': 'secret', 'a': 1, 'b': 99}, doseq=True)}",
        "/commits",
        *(f"/commit?id={number}" for number in range(1, session.head + 1)),
    ]


class Hostile(Entity):
    __open__ = True
    id: Field[str]
    secret: Field[str]


class Near(Relation[Hostile, Hostile]):
    name: Field[str] = Field(instance_key=True)


@pytest.mark.parametrize("hostile", HOSTILE)
def test_stored_text_is_text(open_session, hostile):
    session = open_session()
    for value in ("-", hostile):
        nested = {hostile: {hostile: [hostile, value]}}
        session.ensure(Hostile(id=hostile, secret=value, **nested))
        session.commit()
    session.ensure(Near(left_key=hostile, right_key=hostile, name=hostile))
    session.commit()
    Operator(session, "ada", reason=hostile).emit("ordered", {"customer": hostile})
    with core_of(session).store.write() as tx:
        spec = TypeSpec("entity", hostile, {hostile: {"type": hostile}}, key=hostile)
        tx.register_type("entity", hostile, spec.to_json(), runtime_id=hostile, reason=hostile)
    app = opened(session)
    with browsing(app) as desk:
        shown = paths(session, "entity", "Hostile", [hostile])
        shown += paths(session, "relation", "Near", [hostile, hostile, hostile])
        for path in shown:
            check(desk.get(path))
        check(desk.get(f"/objects?{urlencode({'type': hostile})}"), status=409)
        asked = {"type": "Hostile", "filter": f"secret eq {hostile}", "order": hostile}
        check(desk.get(f"/objects?{urlencode(asked)}"), status=None)
    app.close()


def check(answer: Any, *, status: int | None = 200) -> None:
    """That nothing in a page runs, or looks like something else than it is."""
    assert answer.status_code == (status or answer.status_code) < 500, answer.text
    page = Page(answer.text)
    assert not [tag for tag, _ in page.tags if tag in ("img", "iframe", "style")]
    assert [found for tag, found in page.tags if tag == "script" and "src" not in found] == []
    names = {name for _, found in page.tags for name in found}
    assert not {name for name in names if name.startswith("on")} | names & {"style"}
    links = [str(found["href"]) for _, found in page.tags if "href" in found]
    assert all(link.startswith(("/", "#")) for link in links), links
    assert "\u202e" not in re.sub(r'value="[^"]*"', "", answer.text)
    assert ">49<" not in answer.text


def test_what_is_hidden_is_nowhere(open_session):
    session = open_session()
    for n in range(3):
        session.ensure(
            Account(
                id="a",
                balance=Decimal(1),
                number=n,
                secret=f"hush-{n}",
                profile={"deep": {"Secret": f"hush-{n}"}, "n": n},
            )
        )
        session.commit()
    Operator(session, "ada", reason="hush-9").emit("ordered", {"customer": "c1"})
    app = opened(session, redact=["secret", "reason"])
    with browsing(app) as desk:
        for path in paths(session, "entity", "Account", ["a"]):
            answer = desk.get(path)
            assert answer.status_code == 200
            assert "hush" not in answer.text, path
        page = read(desk, "/object", type="Account", key="a")
        assert "profile.deep.Secret hidden here → hidden here" in page.text
        for path in ("secret startswith h", "profile.deep.Secret eq hush-1"):
            found = read(desk, "/objects", type="Account", filter=path, status=400)
            assert "is hidden here" in found.text
        for order in ("secret", "secret:asc", "Secret:desc"):
            read(desk, "/objects", type="Account", order=order, status=400)
        read(desk, "/commits", filter="reason:hush-9", status=400)
    app.close()


def test_viewers_see_the_state(shop):
    app = opened(shop, identify=vic)
    with browsing(app) as desk:
        read(desk, "/object", type="Customer", key="c1")
    app.close()


# -- the program's own types ----------------------------------------------------------------------


def test_the_console_leaves_the_types_of_the_program_alone(open_session):
    writer = open_session()
    writer.ensure(Customer(id="c1", name="Ada"))
    writer.commit()
    session = open_session()  # has not used its class yet
    app = opened(session)
    with browsing(app) as desk:
        read(desk, "/objects", type="Customer", filter="name eq Ada")
        read(desk, "/object", type="Customer", key="c1")
    app.close()

    session.ensure(Customer(id="c2", name="Bob"))
    session.commit()
    assert session.get(Customer, "c2") is not None


def test_the_console_sees_a_schema_that_changed(open_session):
    class Thing(Entity):
        id: Field[str]

    first = open_session()
    first.ensure(Thing(id="t"))
    first.commit()
    app = opened(open_session())
    with browsing(app) as desk:
        read(desk, "/objects", type="Thing", filter="id eq t")

        class Thing(Entity):  # type: ignore[no-redef]
            id: Field[str]
            size: Field[int] = Field(default=3)

        second = open_session(settings={"auto_migrate": "compatible"}, entity_types=[Thing])
        second.ensure(Thing(id="u", size=4))
        second.commit()
        found = read(desk, "/objects", type="Thing", filter="size ge 3", order="size")
        assert "size" in found.text
        assert [each for each in found.links if each in "tu"] == ["t", "u"]
    app.close()
