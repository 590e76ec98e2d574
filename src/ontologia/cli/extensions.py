"""`ontologia extensions …`: see, run and begin extensions."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ontologia.cli.call import Call, Commands, not_empty
from ontologia.cli.models import Models, load_models
from ontologia.cli.outdated import warn_of_migration
from ontologia.cli.output import counted, say, show_json, show_rows
from ontologia.cli.serve import hurry

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Event
    from collections.abc import Sequence

    from ontologia.extensions.host import Host
    from ontologia.extensions.loader import LoadedExtension
    from ontologia.extensions.manifest import Manifest
    from ontologia.runtime.session import Session

log = logging.getLogger(__name__)
app = Commands(help="Plug-ins that speak through events.")
Folder = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="A folder of extensions, or one extension.")
]


@app.command("list")
def list_(call: Call, folder: Folder) -> None:
    """List extensions, and what is wrong with their manifests.

    Reads the manifests alone: no code is imported, and what is wrong with it extensions check
    finds. An extension without permissions in its manifest is unrestricted. Needs pip install
    'ontologia[extensions]'.

    Example: ontologia extensions list extensions
    """
    from ontologia.extensions.loader import read_all

    _show_all(call, read_all(folder), "unchecked")


@app.command()
def check(call: Call, folder: Folder) -> None:
    """Check which extensions can run, and say why the others cannot.

    Imports the code of each and makes an instance of it, so the code runs as far as that goes; no
    extension is started, and no store is needed. The exit code is 1 if one is broken. Needs pip
    install 'ontologia[extensions]'.

    Example: ontologia extensions check extensions
    """
    from ontologia.extensions.loader import load_all

    found = load_all(folder)
    _show_all(call, found, "ready")
    if any(each.broken for each in found):
        raise typer.Exit(1)


def _show_all(call: Call, extensions: Sequence[LoadedExtension], otherwise: str) -> None:
    """A row each; `otherwise` is the state of those that are not broken."""
    shown = _facts if call.json else _cells
    show_rows(
        call,
        ["Extension", "Version", "State", "Topics", "Permissions", "Reason"],
        [shown(each) | {"state": "broken" if each.broken else otherwise} for each in extensions],
        names=["id", "version", "state", "topics", "permissions", "reason"],
    )


def _facts(extension: LoadedExtension) -> dict[str, Any]:
    manifest = extension.manifest
    granted = manifest.permissions if manifest else None
    return {
        "id": extension.id,
        "version": manifest.version if manifest else None,
        "description": manifest.description if manifest else None,
        "folder": str(extension.folder),
        "subscribes": [each.model_dump() for each in manifest.events.subscribes]
        if manifest
        else [],
        "publishes": manifest.events.publishes if manifest else [],
        "depends_on": manifest.depends_on if manifest else [],
        "permissions": granted.model_dump() if granted else "unrestricted" if manifest else None,
        "reasons": extension.reasons,
    }


def _cells(extension: LoadedExtension) -> dict[str, Any]:
    manifest = extension.manifest
    return {
        "id": extension.id,
        "version": manifest.version if manifest else None,
        "topics": _topics(manifest) if manifest else None,
        "permissions": _permissions(manifest) if manifest else None,
        "reason": "\n".join(extension.reasons) or None,
    }


def _topics(manifest: Manifest) -> str | None:
    return ", ".join(dict.fromkeys(each.topic for each in manifest.events.subscribes)) or None


def _permissions(manifest: Manifest) -> str:
    if manifest.permissions is None:
        return "unrestricted"
    granted = manifest.permissions.model_dump()
    return "; ".join(f"{to} {', '.join(on)}" for to, on in granted.items() if on) or "none"


@app.command()
def run(
    call: Call,
    folder: Folder,
    models: Models = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Reload an extension when its files change.")
    ] = False,
    bus: Annotated[
        str,
        typer.Option(
            "--bus", metavar="NAME", callback=not_empty, help="Whose events: each bus has them all."
        ),
    ] = "default",
) -> None:
    """Run extensions until stopped.

    Every event of the namespace is given to the extensions that subscribe to its topic; hosts of
    the same bus share the work. What is typed becomes user.message; what extensions have to say
    is printed. The log goes to stderr. With --models, extensions read and write the types of
    MODULE. Extensions that cannot run are told of, and the others do.

    Ctrl+C or SIGTERM lets the running handler come to its end; a second one does not wait. Needs
    pip install 'ontologia[extensions]'.

    Example: ontologia extensions run extensions --watch
    """
    from ontologia.cli.loops import leave, run_to_the_end
    from ontologia.cli.worklog import logged

    found = None if models is None else load_models(models)
    types = {
        "entity_types": found.entity_types if found else [],
        "relation_types": found.relation_types if found else [],
    }
    with call.making(**types) as session, logged():
        if models is not None:
            warn_of_migration(session, models)
        health, all_ended = run_to_the_end(_run(session, folder, watch, bus))
    if call.json:
        show_json({"extensions": health})
    else:
        ran = sum(each["state"] == "running" for each in health.values())
        say(f"stopped: {counted(ran, 'extension')}")
    if not all_ended:
        leave()


async def _run(session: Session, folder: Path, watched: bool, name: str) -> dict[str, Any]:
    """Host the extensions until a signal comes; how they were at the end."""
    import asyncio

    from ontologia.cli.loops import first_of, woken_by_signals
    from ontologia.cli.worklog import STOPPING
    from ontologia.engine.signals import stopping_on_signals
    from ontologia.extensions import Channels, EventBus, Host, TerminalChannel
    from ontologia.extensions.channels import TERMINAL
    from ontologia.extensions.watching import stamps, watch

    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    channels, terminal = Channels(), TerminalChannel(_show)
    channels.add(TERMINAL, terminal)
    bus = EventBus(session, name=name)
    try:
        with woken_by_signals(loop), stopping_on_signals(lambda: _tell(loop, stop), hurry):
            seen = stamps(folder)
            host = Host(folder, bus, channels=channels)
            try:
                await first_of(stop.wait(), host.start())  # which may take its time, too
                if not stop.is_set():
                    _tell_who_runs(host, watched)
                    terminal.listen(bus)
                    await first_of(stop.wait(), *([watch(host, seen)] if watched else []))
                log.info(STOPPING)
                return host.health()
            finally:
                await host.stop()
    finally:
        terminal.close()
        await bus.close()


def _tell_who_runs(host: Host, watched: bool) -> None:
    from ontologia.errors import ExtensionError

    if not host.running and not watched:
        raise ExtensionError(
            f"none of the extensions in {host.folder} can run",
            hint="The log says why, and so does ontologia extensions check.",
        )
    log.info("running %s: %s", counted(len(host.running), "extension"), ", ".join(host.running))


def _tell(loop: AbstractEventLoop, stop: Event) -> None:
    loop.call_soon_threadsafe(stop.set)


def _show(text: str) -> None:
    import sys

    from ontologia.cli.output import harmless

    typer.echo(harmless(text) if sys.stdout.isatty() else text)


@app.command()
def new(
    call: Call,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its id: a-z, 0-9 and _.")],
    into: Annotated[
        Path, typer.Option("--into", metavar="FOLDER", help="Where its folder is made.")
    ] = Path("extensions"),
) -> None:
    """Begin an extension: a folder with a manifest, code and a test.

    It works as it is. Nothing that is there is written over.

    Example: ontologia extensions new reminders --into extensions
    """
    from ontologia.extensions.loader import write_skeleton
    from ontologia.extensions.manifest import checked_id

    try:
        checked_id(name)
    except ValueError as error:
        raise typer.BadParameter(f"an id {error}", param_hint="NAME") from None
    folder = write_skeleton(name, into)
    files = sorted(each.name for each in folder.iterdir())
    if call.json:
        show_json({"id": name, "folder": str(folder), "files": files})
        return
    say(f"{folder}: {', '.join(files)}")
    say(f"Its test:   python -m pytest {folder}")
    say(f"Run it:     ontologia extensions run {into}")
    say(f"""Ask it:     ontologia emit {name}.asked '{{"name": "Ada"}}'""")
