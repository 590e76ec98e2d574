"""`ontologia serve MODULE...`: the commands of a program over HTTP."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from ontologia.cli.application import Group, Modules, application
from ontologia.cli.call import Call, not_empty
from ontologia.cli.output import counted, say, show_json
from ontologia.cli.start import INTERRUPTED

if TYPE_CHECKING:
    from socket import socket

    from ontologia.cli.logged_worker import LoggedWorker
    from ontologia.commands import Env
    from ontologia.web.serving import Server

log = logging.getLogger(__name__)


def serve(
    call: Call,
    modules: Modules,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", callback=not_empty, help="Where to listen.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, metavar="N", help="0 takes one that is free.")
    ] = 8000,
    token: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            envvar="ONTOLOGIA_TOKEN",
            callback=not_empty,
            help="What clients must send.",
            show_default="a new one, which is shown once",
        ),
    ] = None,
    no_auth: Annotated[
        bool, typer.Option("--no-auth", help="Let in every program of this machine.")
    ] = False,
    with_worker: Annotated[
        bool, typer.Option("--with-worker", help="Handle the commands' events here, too.")
    ] = False,
    group: Group = "default",
) -> None:
    """Carry out the commands of modules for clients that ask over HTTP, until stopped.

    Commands are the methods of models decorated with @api.on_command; POST /commands/NAME carries
    one out, GET /openapi.json describes them, GET /health needs no token. The working directory is
    looked at first. The log goes to stderr.

    Ctrl+C or SIGTERM lets running requests, and a running handler, come to their end; a second one
    does not wait. Needs pip install 'ontologia[web]'.

    Example: ontologia serve myapp.shipping --port 8080 --with-worker
    """
    from ontologia.cli.logged_worker import LoggedWorker
    from ontologia.cli.worklog import logged
    from ontologia.runtime.signals import stopping_on_signals
    from ontologia.web import create_app
    from ontologia.web.serving import Server, listen

    if no_auth and token is not None:
        raise typer.BadParameter("there is a token, and --no-auth; give one of them")
    with application(call, modules, group) as env, listen(host, port) as listener, logged():
        _check(env, modules, listener, no_auth)
        worker = LoggedWorker(env) if with_worker else None
        secret = None if no_auth else token or _new_token()
        server = Server(create_app(env, token=secret, worker=worker), listener)
        commands = counted(len(env.registry.commands), "command")
        with stopping_on_signals(server.stop, _hurry), _beside(server, worker):
            log.info("serving %s at %s", commands, server.url)
            server.serve_forever()
    answered = server.server_state.total_requests
    if call.json:
        show_json({"requests": answered, "worker": worker and worker.health_snapshot()})
    else:
        handled = "" if worker is None else f", {counted(worker.done, 'event')} done"
        say(f"stopped: {counted(answered, 'request')} answered{handled}")


def _check(env: Env, modules: list[str], listener: socket, no_auth: bool) -> None:
    from ontologia.errors import ConfigError, NotFoundError
    from ontologia.web.serving import is_loopback

    if not env.registry.commands:
        raise NotFoundError(
            f"{', '.join(modules)}: there are no commands",
            hint='Decorate methods of models: @api.on_command("some.command").',
        )
    if no_auth and not is_loopback(listener):
        raise ConfigError(
            "--no-auth is for the addresses of this machine: whoever reaches another one could "
            "carry out every command",
            hint="Set ONTOLOGIA_TOKEN, or listen at 127.0.0.1 behind something that asks who it is.",
        )


def _new_token() -> str:
    import secrets

    made = secrets.token_urlsafe(32)
    typer.echo(f"token for this run: {made}", err=True)
    return made


@contextmanager
def _beside(server: Server, worker: LoggedWorker | None) -> Generator[None]:
    """Run a worker in a thread of its own. If it ends by itself, so does the server."""
    if worker is None:
        yield
        return
    failures: list[BaseException] = []

    def run() -> None:
        try:
            worker.run_forever()
        except BaseException as error:  # noqa: BLE001 - raised below
            failures.append(error)
            server.stop()

    thread = threading.Thread(target=run, name="worker", daemon=True)
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join()
    if failures:
        raise failures[0]


def _hurry() -> bool:
    """A second signal: threads that carry out commands cannot be interrupted, only left.

    What they have not committed is not written.
    """
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)
