"""`DomainModel`: a class of records, and what can be done with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from ontologia.errors import DefinitionError
from ontologia.schema.annotations import is_field, own_annotations
from ontologia.schema.entity import Entity
from ontologia.schema.field import Field

if TYPE_CHECKING:
    from ontologia.commands.env import Env
_TAKEN = ("env", "emit")


class DomainModel(Entity, abstract=True):
    """Base of models: the fields of a record, and methods that handle commands about them.

    Its records are entities like all others, stored under the model's key (`@api.model(...)`):
    `session.query().entities(Shipment)`, history, `as_of` and `why` work on them. A model without
    any fields is open: its records hold whatever JSON they are given.

    The object on which a command's method is called is made for that one call. It is the model,
    not a record: it has `env`, and no values.
    """

    __slots__ = ("_env",)
    __open__: ClassVar[bool] = False
    __model_key__: ClassVar[str | None] = None

    id: Field[str] = Field(primary_key=True)

    def __init_subclass__(cls, *, abstract: bool = False, name: str | None = None) -> None:
        super().__init_subclass__(abstract=abstract, name=name)
        named = [base for base in cls.__mro__ if base not in DomainModel.__mro__]
        annotated = [own_annotations(base).items() for base in named]
        fields = {name for each in annotated for name, annotation in each if is_field(annotation)}
        for taken in fields & set(_TAKEN):
            raise DefinitionError(
                f"{cls.__name__}.{taken}: the name is taken by every model",
                hint=f"Call the field something else, for example {taken}_.",
            )
        cls.__open__ = not fields - {"id"}

    if not TYPE_CHECKING:

        def __init__(self, /, *positional: Any, **values: Any) -> None:
            # Without values it is the one on which a command's method is called.
            if positional or values:
                super().__init__(*positional, **values)

    @property
    def env(self) -> Env:
        """Where the command is carried out."""
        try:
            found: Env = object.__getattribute__(self, "_env")
        except AttributeError:
            raise RuntimeError(
                f"{type(self).__name__} has an env only while one of its methods is called for a "
                f"command, a hook or an event"
            ) from None
        return found

    @env.setter
    def env(self, env: Env) -> None:
        object.__setattr__(self, "_env", env)

    def emit(self, name: str, payload: dict[str, Any], **options: Any) -> None:
        """Announce an event: `self.env.emit(...)`."""
        self.env.emit(name, payload, **options)

    def _lacks(self, name: str) -> str:
        if hasattr(self, "_env"):
            return (
                f"self is the model {type(self).__name__} and has no values; "
                f"a record's {name!r} is in cmd.record.read()[0]"
            )
        return super()._lacks(name)
