"""`ontologia demo`: what Ontologia does, in a minute, on a database that stays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ontologia.cli.call import Call
from ontologia.cli.output import show_json

if TYPE_CHECKING:
    from ontologia.cli.demo_story import Told

_FILES = ("", "-wal", "-shm")  # what SQLite keeps beside a database
_MARK = "ontologia demo"


def demo(
    call: Call,
    path: Annotated[Path, typer.Option(metavar="FILE", help="Where the database is made.")] = Path(
        "ontologia-demo.db"
    ),
    fast: Annotated[bool, typer.Option("--fast", help="Without pauses for reading.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Instead of the database of an earlier demo.")
    ] = False,
    console: Annotated[
        bool, typer.Option("--console", help="Then serve its console, until stopped.")
    ] = False,
) -> None:
    """Tell a small story: a shop whose orders are placed, paid and shipped by handlers.

    One handler fails and is tried again, one event dies, a schedule fires. The database stays, and
    at the end there are commands to look into it. With --console it is shown in the browser, where
    the dead event can be retried; that needs pip install 'ontologia[web]'.

    Example: ontologia demo --path shop.db
    """
    if call.datastore_uri is not None:
        raise typer.BadParameter("the demo makes a file of its own; name it with --path")
    _make_room(path, force)
    from ontologia.cli.demo_story import tell

    uri = f"sqlite:///{path}"
    namespace = call.namespace or "shop"
    told = tell(uri, namespace, _teller(quiet=call.json), pauses=not fast, mark=_MARK)
    commands = next_steps(uri, namespace, told)
    if call.json:
        show_json({"datastore_uri": uri, "namespace": namespace, "orders": told.orders} | {
            "dead_event": told.dead_event, "root_event": told.root_event, "next": commands,
        })  # fmt: skip
    else:
        typer.echo("\nLook into it:")
        for command in commands:
            typer.echo(f"  {command}")
    if console:
        _serve_console(call, uri, namespace)


def _serve_console(call: Call, uri: str, namespace: str) -> None:
    """Its console at a free port; at a terminal it is opened in the browser."""
    import secrets
    import sys
    import webbrowser

    from ontologia.cli.console import serve
    from ontologia.web import console as console_of
    from ontologia.web.serving import listen

    def began(url: str) -> None:
        if sys.stdout.isatty() and not call.json:
            webbrowser.open(url)

    if not call.json:
        typer.echo()
    there = Call(uri, namespace, call.json, call.debug)
    with listen("127.0.0.1", 0) as listener, there.reading() as session:
        app = console_of(session, token=secrets.token_urlsafe(32), label="demo")
        serve(there, app, listener, began)


def next_steps(uri: str, namespace: str, told: Told) -> list[str]:
    """Commands that show something on the database that was left."""
    import shlex

    where = f"--datastore-uri {shlex.quote(uri)} --namespace {shlex.quote(namespace)}"
    program = _program()
    return [
        f"{program} why Order o-1 {where}",
        f"{program} trace {told.root_event} {where}",
        f"{program} events dead-letters {where}",
        f"{program} doctor {where}",
        f"{program} run ontologia.cli.demo_shop {where}",
    ]


def _program() -> str:
    """What to type for `ontologia` here: its environment need not be the active one."""
    import shlex
    import shutil
    import sys

    if shutil.which("ontologia"):
        return "ontologia"
    python = Path(sys.executable)
    here = Path.cwd()
    return f"{shlex.quote(str(python.relative_to(here) if python.is_relative_to(here) else python))} -m ontologia"


def _make_room(path: Path, force: bool) -> None:
    """Remove an earlier demo's database; anything else is not ours to remove."""
    from ontologia.errors import ConfigError

    if not path.exists():
        return
    if not force:
        raise ConfigError(
            f"{path} is there already; nothing was changed",
            hint="--force replaces the database of an earlier demo, --path names another file.",
        )
    if not _is_demo(path):
        raise ConfigError(
            f"{path} is not the database of a demo; nothing was changed",
            hint="Name another file with --path.",
        )
    for suffix in _FILES:
        Path(f"{path}{suffix}").unlink(missing_ok=True)


def _is_demo(path: Path) -> bool:
    from ontologia.errors import OntologiaError

    try:
        with Call(f"sqlite:///{path}").reading() as session:
            events = session.event_store
            return any(
                each["metadata"].get("program") == _MARK
                for namespace in events.list_namespaces()
                for each in events.list_sessions(namespace["namespace"])
            )
    except OntologiaError:
        return False


def _teller(*, quiet: bool) -> Callable[..., None]:
    """Where the story goes: coloured on a terminal, plain elsewhere, nowhere for programs."""
    from rich.console import Console
    from rich.text import Text

    console = Console(soft_wrap=True, highlight=False)

    def say(line: str, style: str = "") -> None:
        if not quiet:
            console.print(Text(line, style=style))

    return say
