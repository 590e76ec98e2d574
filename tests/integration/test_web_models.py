"""FastAPI takes entities and relations for what it answers and for what it is sent."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any

import httpx
import pytest
from pydantic import BaseModel, field_validator

from ontologia import Entity, Field, Relation, Session

fastapi = pytest.importorskip("fastapi")


class Ware(Entity):
    id: Field[str]
    price: Field[Decimal]
    added: Field[datetime | None] = Field(default=None)
    tags: Field[list[str]] = Field(default_factory=list)

    @field_validator("price")
    @classmethod
    def _positive(cls, value: Decimal) -> Decimal:
        if value < 0:
            raise ValueError("a price is not negative")
        return value


class Offers(Relation[Ware, Ware]):
    rank: Field[int] = Field(default=1)


class Page(BaseModel):
    wares: list[Ware]
    number: int


@pytest.fixture
def client(uri):
    app = fastapi.FastAPI()
    session = Session(uri)
    session.ensure(Ware(id="w1", price="2.50", added=datetime(2026, 1, 2, tzinfo=UTC)))
    session.ensure(Ware(id="w2", price=3, tags=["new"]))
    session.ensure(Offers(left_key="w1", right_key="w2"))
    session.commit()

    @app.get("/wares/{id}")
    def one(id: str) -> Ware | None:
        return session.query().entities(Ware).where(Ware.id == id).first()

    @app.get("/wares")
    def every() -> list[Ware]:
        return session.query().entities(Ware).collect()

    @app.get("/short", response_model=Ware, response_model_include={"id"})
    def short():
        return session.query().entities(Ware).first()

    @app.get("/pages/1")
    def page() -> Page:
        return Page(wares=session.query().entities(Ware).collect(), number=1)

    @app.get("/untyped")
    def untyped():
        return session.query().entities(Ware).first()

    @app.get("/offers")
    def offers() -> list[Offers]:
        return session.query().relations(Offers).collect()

    @app.put("/wares")
    def put(ware: Ware) -> Ware:
        session.ensure(ware)
        session.commit()
        return ware

    @app.put("/many")
    def put_many(wares: list[Ware], offer: Annotated[Offers, fastapi.Body()]) -> int:
        session.ensure([*wares, offer])
        session.commit()
        return len(wares)

    yield Client(app)
    session.close()


class Client:
    """Asks an application in this process."""

    def __init__(self, app: Any) -> None:
        self._app = app

    def _ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def asked() -> httpx.Response:
            transport = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(transport=transport, base_url="http://app") as client:
                return await client.request(method, path, **options)

        return asyncio.run(asked())

    def get(self, path: str) -> httpx.Response:
        return self._ask("GET", path)

    def put(self, path: str, json: Any) -> httpx.Response:
        return self._ask("PUT", path, json=json)


W1 = {"id": "w1", "price": "2.50", "added": "2026-01-02T00:00:00Z", "tags": []}
W2 = {"id": "w2", "price": "3", "added": None, "tags": ["new"]}


def test_objects_are_answers(client):
    assert client.get("/wares/w1").json() == W1
    assert client.get("/wares/none").json() is None
    assert client.get("/wares").json() == [W1, W2]
    assert client.get("/short").json() == {"id": "w1"}
    assert client.get("/pages/1").json() == {"wares": [W1, W2], "number": 1}
    assert client.get("/offers").json() == [{"left_key": "w1", "right_key": "w2", "rank": 1}]
    assert client.get("/untyped").json()["id"] == "w1"


def test_objects_are_what_is_sent(client):
    done = client.put("/wares", json={"id": "w3", "price": "1.10"})

    assert (done.status_code, done.json()["price"]) == (200, "1.10")
    assert client.get("/wares/w3").json()["price"] == "1.10"
    both = {"wares": [W1 | {"id": "w4"}], "offer": {"left_key": "w4", "right_key": "w1"}}
    assert client.put("/many", json=both).json() == 1
    assert len(client.get("/offers").json()) == 2


def test_what_does_not_fit_is_answered_with_its_place(client):
    done = client.put("/wares", json={"price": "-1", "colour": "red"})

    assert done.status_code == 422
    assert {tuple(each["loc"]) for each in done.json()["detail"]} == {
        ("body", "id"),
        ("body", "price"),
        ("body", "colour"),
    }
    assert client.get("/wares").json() == [W1, W2]


def test_the_description_names_the_types(client):
    described = client.get("/openapi.json").json()

    answer = described["paths"]["/wares"]["get"]["responses"]["200"]["content"]
    items = answer["application/json"]["schema"]["items"]["$ref"]
    assert items.startswith("#/components/schemas/Ware")
    schemas = described["components"]["schemas"]
    assert schemas[items.rpartition("/")[2]]["properties"]["price"]["type"] == "string"
    sent = described["paths"]["/wares"]["put"]["requestBody"]["content"]["application/json"]
    assert schemas[sent["schema"]["$ref"].rpartition("/")[2]]["required"] == ["id", "price"]
