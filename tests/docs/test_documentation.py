"""What the documentation says is there, is there; what is there, it says."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from ontologia import Session
from ontologia.query import EntityQuery, GroupedQuery, PathQuery, RelationQuery
from ontologia.schema.expression import Expr
from tests.shop import Customer, Product, Subscription

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"


def public_methods(cls: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(cls) if not name.startswith("_")}


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def test_every_method_of_a_session_is_documented():
    page = (DOCS / "reference/session.md").read_text()

    assert [name for name in public_methods(Session) if f"`{name}" not in page] == []


@pytest.mark.parametrize("cls", [EntityQuery, RelationQuery, PathQuery, GroupedQuery, Expr])
def test_everything_that_can_be_asked_is_documented(cls):
    page = (DOCS / "reference/query.md").read_text()

    assert [name for name in public_methods(cls) if not re.search(rf"\b{name}\b", page)] == []


@pytest.mark.req("SQL-112")
def test_the_diagnostic_queries_run_and_a_healthy_store_gives_the_good_output(session, sql):
    session.ensure([Customer(id="c1", name="Ada"), Product(sku="p1", price=1.0)])
    session.ensure(Subscription(left_key="c1", right_key="p1", seats=1))
    session.commit()
    session.delete(Product(sku="p1", price=1.0))
    session.commit()
    queries = blocks(DOCS / "howto/diagnose.md", "sql")

    answers = {query: sql(query) for query in queries if "wal_checkpoint" not in query}

    assert len(answers) >= 10
    for query, rows in answers.items():
        if "-- good: no row" in query:
            assert rows == [], query
        if "two equal numbers" in query:
            assert rows == [[2, 2]]
        if "-- good: 0 and 0" in query:
            assert rows == [[0, 0]]
        if "EXPLAIN" in query:
            assert "USING INDEX idx_entity_history_lookup" in rows[0][3]


@pytest.mark.parametrize(
    "page", [*sorted(DOCS.rglob("*.md")), ROOT / "README.md"], ids=lambda p: p.name
)
def test_links_between_pages_lead_somewhere(page):
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())

    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_every_test_names_rows_that_exist():
    known = set(
        re.findall(r"^- ([A-Z]{3}-\d{3}) ", (DOCS / "requirements.md").read_text(), re.MULTILINE)
    )
    named = set()
    for path in (ROOT / "tests").rglob("*.py"):
        for marks in re.findall(r"mark\.req\(([^)]*)\)", path.read_text()):
            named |= set(re.findall(r"[A-Z]{3}-\d{3}", marks))

    assert named
    assert named - known == set()
