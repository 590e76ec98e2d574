"""Records: where they are found, and what can be done with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ontologia.commands import domain as domains
from ontologia.commands.command import Command
from ontologia.commands.domain import Domain
from ontologia.commands.work import work_of
from ontologia.errors import InvalidTypeError, InvalidValueError, RecordNotFound

if TYPE_CHECKING:
    from ontologia.commands.env import Env
    from ontologia.commands.model import DomainModel

Values = Mapping[str, Any]


class RecordSet:
    """Records of one model, by their ids and in this order; they need not exist.

    Going through it gives sets of one. What is changed is changed by the commands `ede.update`
    and `ede.delete`, one a record, with all hooks; outside of a command the whole set is one unit
    of work.
    """

    __slots__ = ("_env", "ids", "model_key")

    def __init__(self, env: Env, model_key: str, ids: Sequence[str]) -> None:
        self._env = env
        self.model_key = model_key
        self.ids = list(ids)

    @property
    def id(self) -> str:
        """The id of the only record in the set."""
        if len(self.ids) != 1:
            raise InvalidValueError(
                f"id is asked of a set of one record, and this one has {len(self.ids)}",
                hint="Go through the set, or use ids.",
            )
        return self.ids[0]

    def read(self, fields: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """The records as dicts, `id` among the fields; only these fields, if given.

        RecordNotFound if one of them does not exist. One statement, whatever their number.
        """
        shape = self._env.registry.model(self.model_key).__shape__
        found = work_of(self._env).reading().records(shape, self.ids)
        if missing := [id for id, each in zip(self.ids, found, strict=True) if each is None]:
            raise RecordNotFound(self.model_key, missing)
        records = [vars(each) for each in found]
        return records if fields is None else [self._only(each, fields) for each in records]

    def _only(self, record: dict[str, Any], fields: Sequence[str]) -> dict[str, Any]:
        if isinstance(fields, str):
            raise InvalidTypeError(f"read takes a list of fields; write [{fields!r}]")
        chosen = {"id": record["id"]}
        for name in fields:
            if name not in record and not self._env.registry.model(self.model_key).__open__:
                raise InvalidValueError(f"{self.model_key} has no field {name!r}")
            chosen[name] = record.get(name)
        return chosen

    def exists(self) -> RecordSet:
        """Those of the records that exist."""
        shape = self._env.registry.model(self.model_key).__shape__
        found = work_of(self._env).reading().records(shape, self.ids)
        ids = [id for id, each in zip(self.ids, found, strict=True) if each is not None]
        return RecordSet(self._env, self.model_key, ids)

    def write(self, values: Values) -> None:
        """Change these fields of every record in the set."""
        payload = _values(values)
        self._each("ede.update", payload)

    def unlink(self) -> None:
        """Delete every record in the set; their history stays."""
        self._each("ede.delete", {})

    def _each(self, name: str, payload: dict[str, Any]) -> None:
        commands = [Command(name, payload, self.model_key, id) for id in self.ids]
        work_of(self._env).dispatch_all(commands)

    def __iter__(self) -> Iterator[RecordSet]:
        return (RecordSet(self._env, self.model_key, [id]) for id in self.ids)

    def __getitem__(self, index: int | slice) -> RecordSet:
        chosen = self.ids[index]
        ids = [chosen] if isinstance(chosen, str) else chosen
        return RecordSet(self._env, self.model_key, ids)

    def __len__(self) -> int:
        return len(self.ids)

    def __bool__(self) -> bool:
        return bool(self.ids)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RecordSet):
            return NotImplemented
        return (self.model_key, self.ids) == (other.model_key, other.ids)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"RecordSet(model_key={self.model_key!r}, ids={self.ids!r})"


class Records:
    """All records of one model: `env.models["logistics.shipment"]`."""

    __slots__ = ("_env", "_shape", "model_key")

    def __init__(self, env: Env, model: type[DomainModel]) -> None:
        self._env = env
        self._shape = model.__shape__
        self.model_key = self._shape.name

    def create(self, values: Values | Sequence[Values]) -> RecordSet:
        """Make one record, or several, each by the command `ede.create` with all hooks.

        A record that brings no `id` gets one. Outside of a command all of them are one unit of
        work.
        """
        several = values if isinstance(values, list | tuple) else [values]
        commands = [Command("ede.create", _values(each), self.model_key) for each in several]
        made = work_of(self._env).dispatch_all(commands)
        return RecordSet(self._env, self.model_key, [record["id"] for record in made])

    def browse(self, *ids: Any) -> RecordSet:
        """The records with these ids, without asking whether they exist; None is left out."""
        for id in ids:
            if id is not None and not isinstance(id, str):
                hint = "Write browse(*ids)." if isinstance(id, list | tuple) else None
                raise InvalidTypeError(f"browse takes ids, which are text, got {id!r}", hint=hint)
        return RecordSet(self._env, self.model_key, list(dict.fromkeys(filter(None, ids))))

    def search(
        self,
        domain: Domain | None = None,
        *,
        order: str | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> RecordSet:
        """The records that a domain describes; all of them without one. One statement."""
        found = self._find(domain, order, limit, offset)
        return RecordSet(self._env, self.model_key, [each.id for each in found])

    def _find(
        self, domain: Domain | None, order: str | None, limit: int | None, offset: int
    ) -> list[Any]:
        query = work_of(self._env).reading().query().entities(self._shape.cls)
        condition = domains.condition(self._shape, domain)
        if condition is not None:
            query = query.where(condition)
        query = query.order_by(*domains.orders(self._shape, order)).offset(offset)
        return (query if limit is None else query.limit(limit)).collect()

    def count(self, domain: Domain | None = None) -> int:
        """How many records a domain describes."""
        query = work_of(self._env).reading().query().entities(self._shape.cls)
        condition = domains.condition(self._shape, domain)
        return (query if condition is None else query.where(condition)).count()

    def read_group(
        self,
        domain: Domain | None = None,
        *,
        group_by: Sequence[str],
        aggregate: Mapping[str, str] | None = None,
        order: str | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> list[dict[str, Any]]:
        """One dict for each combination of the values of `group_by`, with its aggregates.

        `aggregate` is `{"total": "sum:price"}`, with `count`, `sum`, `avg`, `min` and `max`;
        without it, every group has its `count`. `order` speaks of fields and aliases.
        """
        if isinstance(group_by, str) or not isinstance(group_by, Sequence) or not group_by:
            wrong = isinstance(group_by, str) or not isinstance(group_by, Sequence)
            raise (InvalidTypeError if wrong else InvalidValueError)(
                f"group_by takes a list of fields, got {group_by!r}"
            )
        query = work_of(self._env).reading().query().entities(self._shape.cls)
        condition = domains.condition(self._shape, domain)
        if condition is not None:
            query = query.where(condition)
        figures = domains.figures(self._shape, aggregate)
        grouped = query.group_by(*(domains.expression(self._shape, each) for each in group_by))
        for term in domains.group_orders(self._shape, order, figures):
            grouped = grouped.order_by(term)
        grouped = grouped.offset(offset)
        return (grouped if limit is None else grouped.limit(limit)).agg(**figures)

    def __repr__(self) -> str:
        return f"<records of {self.model_key}>"


def _values(values: Any) -> dict[str, Any]:
    if not isinstance(values, Mapping):
        raise InvalidTypeError(f"a record's values are a dict, got {values!r:.200}")
    return dict(values)
