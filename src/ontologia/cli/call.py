"""What every command is told: which store, which namespace, and how to answer.

`--datastore-uri`, `--namespace`, `--json` and `--debug` may stand before the command or after it.
A command that takes a `Call` first has them; it need not name them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ontologia.config import OntologiaConfig
    from ontologia.runtime.core import Core
    from ontologia.runtime.session import Session

_DEFAULT = Path("app.db")


def not_empty(value: str | None) -> str | None:
    """A variable that was not set must not mean the store, or the namespace, of the default."""
    if value == "":
        raise typer.BadParameter("it is empty; leave it out for the default")
    return value


Uri = Annotated[
    str | None,
    typer.Option(
        "--datastore-uri",
        metavar="URI",
        callback=not_empty,
        help="The store: a path, sqlite:///app.db or postgresql://user@host/database.",
        show_default="ONTOLOGIA_DATASTORE_URI, datastore_uri in ontologia.toml, or app.db",
    ),
]
Namespace = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        metavar="NAME",
        callback=not_empty,
        help="Which events are meant.",
        show_default="default",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Answer in JSON, one value a line.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show where an error came from.")]


def core_of(session: Session) -> Core:
    """`ontologia.runtime.session.core_of`, imported when a command needs it."""
    from ontologia.runtime.session import core_of

    return core_of(session)


@dataclass(frozen=True)
class Call:
    """One call of the program."""

    datastore_uri: str | None = None
    namespace: str | None = None
    json: bool = False
    debug: bool = False

    def refined(self, later: Call) -> Call:
        """With what stands after the command, which counts more."""
        return replace(
            self,
            datastore_uri=later.datastore_uri or self.datastore_uri,
            namespace=later.namespace or self.namespace,
            json=later.json or self.json,
            debug=later.debug or self.debug,
        )

    @functools.cached_property
    def config(self) -> OntologiaConfig:
        """The settings of the environment and of the files here."""
        from ontologia.config import OntologiaConfig

        return OntologiaConfig()

    @property
    def named_uri(self) -> str | None:
        """The store that an option, the environment or a file names."""
        return self.config.datastore_uri if self.datastore_uri is None else self.datastore_uri

    @property
    def uri(self) -> str:
        """The store that is meant; NotFoundError if nothing says which."""
        from ontologia.errors import NotFoundError

        found = self.named_uri
        if found is not None:
            return found
        if _DEFAULT.is_file():
            return f"sqlite:///{_DEFAULT}"
        raise NotFoundError(
            "no store was named, and there is no app.db here",
            hint="Give --datastore-uri sqlite:///path/to/file.db, or set ONTOLOGIA_DATASTORE_URI; "
            "ontologia init makes a store, ontologia demo one with something in it.",
        )

    def again(self, *words: str) -> str:
        """A command for the same store, to be copied; what may have a password is left open."""
        import shlex

        said = f"ontologia {shlex.join(words)}"
        if self.datastore_uri is None:
            return said
        on_server = self.datastore_uri.startswith("postgres")
        uri = "postgresql://…" if on_server else shlex.quote(self.datastore_uri)
        return f"{said} --datastore-uri {uri}"

    @contextmanager
    def reading(self, **options: Any) -> Generator[Session]:
        """A session that leaves no trace; a store that is not there is not made."""
        from ontologia.runtime.views.reading import ReadingSession

        options.setdefault("config", self.config)
        with _closing(ReadingSession(self._existing(), self.namespace, **options)) as session:
            yield session

    @contextmanager
    def writing(self, **options: Any) -> Generator[Session]:
        """A session that may change the store, which must be there already."""
        from ontologia.runtime.session import Session

        options.setdefault("config", self.config)
        with _closing(Session(self._existing(), self.namespace, **options)) as session:
            yield session

    @contextmanager
    def making(self, **options: Any) -> Generator[Session]:
        """The same, but a store that was named and is not there is made, and that is told."""
        from ontologia.errors import NotFoundError
        from ontologia.runtime.session import Session

        missing = False
        try:
            self._existing()
        except NotFoundError:
            if self.named_uri is None:
                raise
            missing = True
        options.setdefault("config", self.config)
        with _closing(Session(self.uri, self.namespace, **options)) as session:
            if missing:
                typer.echo("There was no store there yet; a new one was made.", err=True)
            yield session

    def _existing(self) -> str:
        from ontologia.runtime.views.reading import check_store

        uri = self.uri
        check_store(uri, self.config)
        return uri


@contextmanager
def _closing(session: Session) -> Generator[Session]:
    """Close it; unlike `with session`, nothing is committed that no command committed."""
    try:
        yield session
    finally:
        session.close()


class Commands(typer.Typer):
    """A group of commands, or all of them.

    Help is plain text: with Rich, Typer breaks its lines where the source does, and flags seem to
    take a value. A list of commands has the whole first sentence of each.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(rich_markup_mode=None, **options)

    def command(self, name: str | None = None, **options: Any) -> Callable[..., Any]:
        """Register a command; one whose first parameter is a `Call` is given it."""
        command = super().command

        def registered(function: Callable[..., Any]) -> Callable[..., Any]:
            first = inspect.cleandoc(function.__doc__ or "").partition("\n\n")[0]
            command(name, short_help=first, **options)(_with_call(function))
            return function

        return registered


def _with_call(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same command with the common options, which it gets as a `Call`."""
    signature = inspect.signature(function, eval_str=True)
    own = list(signature.parameters.values())
    if not own or own[0].annotation is not Call:
        return function

    @functools.wraps(function)
    def called(**values: Any) -> Any:
        root = values.pop("ctx").find_root()
        later = Call(*(values.pop(name) for name in _COMMON))
        earlier: Call = root.obj or Call()
        root.obj = call = earlier.refined(later)
        return function(call, **values)

    context = inspect.Parameter(
        "ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context
    )
    common = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in _COMMON.items()
    ]
    parameters = [context, *(each.replace(kind=each.KEYWORD_ONLY) for each in own[1:]), *common]
    called.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {each.name: each.annotation for each in parameters}
    return called


_COMMON: dict[str, tuple[Any, Any]] = {
    "datastore_uri": (Uri, None),
    "namespace": (Namespace, None),
    "json": (Json, False),
    "debug": (Debug, False),
}
