"""The commands, put together.

A module here may import nothing but Typer at its top: what a command needs, it imports when it
runs, so that `--help` and every other command need not wait for it.

Exit codes: 0 done, 1 an error, 2 a command that was not understood, 3 a schema that does not fit, or
what `preflight` found would break, 4 not found, 5 the database, 6 a conflict with somebody else, 130
interrupted, 141 nobody reads on.
"""

from __future__ import annotations

from typing import Annotated

import typer

from ontologia.cli import (
    ask,
    commits,
    console,
    copy,
    demo,
    doctor,
    drop,
    emit,
    events,
    explain,
    extensions,
    info,
    migrate,
    preflight,
    query,
    relay,
    run,
    schedules,
    schema,
    serve,
    transfer,
    worker,
)
from ontologia.cli.call import Call, Commands, Debug, Json, Namespace, Uri
from ontologia.cli.failures import Failures
from ontologia.cli.start import version

app = Commands(
    name="ontologia",
    cls=Failures,
    help="Typed, versioned state and a durable event bus in one database.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command("call")(ask.call)
app.command("console")(console.console)
app.command("copy")(copy.copy)
app.command("demo")(demo.demo)
app.command("diff")(commits.diff)
app.command("doctor")(doctor.doctor)
app.command("emit")(emit.emit)
app.command("export")(transfer.export)
app.command("import")(transfer.import_)
app.command("info")(info.info)
app.command("init")(info.init)
app.command("intake")(relay.intake)
app.command("migrate")(migrate.migrate)
app.command("preflight")(preflight.preflight)
app.command("relay")(relay.relay)
app.command("run")(run.run)
app.command("serve")(serve.serve)
app.command("trace")(explain.trace)
app.command("why")(explain.why)
app.command("worker")(worker.worker)
app.add_typer(commits.app, name="commits")
app.add_typer(events.app, name="events")
app.add_typer(extensions.app, name="extensions")
app.add_typer(query.app, name="query")
app.add_typer(schedules.app, name="schedules")
schema.app.command("drop")(drop.drop)
app.add_typer(schema.app, name="schema")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(version())
        raise typer.Exit


@app.callback()
def options(
    ctx: typer.Context,
    datastore_uri: Uri = None,
    namespace: Namespace = None,
    json: Json = False,
    debug: Debug = False,
    show_version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """What comes before the name of a command."""
    ctx.obj = Call(datastore_uri, namespace, json, debug)
