"""`ontologia serve`: the commands of a program over HTTP, and a store on a Unix socket."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from ontologia.cli.application import Group, application
from ontologia.cli.call import Call, not_empty
from ontologia.cli.models import Models
from ontologia.cli.output import counted, say, show_json
from ontologia.cli.start import INTERRUPTED

if TYPE_CHECKING:
    from ontologia.actors import Capability
    from ontologia.cli.logged_worker import LoggedWorker
    from ontologia.commands import Env
    from ontologia.web.serving import Listener, Server

log = logging.getLogger(__name__)


def serve(
    call: Call,
    modules: Annotated[
        list[str] | None,
        typer.Argument(metavar="MODULE", help="Modules with models; served over HTTP."),
    ] = None,
    socket: Annotated[
        str | None,
        typer.Option(metavar="PATH", callback=not_empty, help="Serve the store here, too."),
    ] = None,
    models: Models = None,
    capabilities: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODULE:NAME", help="Actors of your own for the socket; may be repeated."
        ),
    ] = None,
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
    """Serve commands over HTTP, or a whole store on a Unix socket, or both, until stopped.

    Commands are the methods of models decorated with @api.on_command; POST /commands/NAME carries
    one out, GET /openapi.json describes them, GET /health needs no token. The working directory is
    looked at first. The log goes to stderr. Needs pip install 'ontologia[web]'.

    With --socket, programs of this user in any language send lines of JSON there: State.Query,
    Event.Publish, Command.Dispatch and others, which System.Describe lists. Without MODULE there is
    no HTTP; types and commands are those of --models, and what the store knows. --capabilities adds
    actors of your own: a Capability, or a list of them, by module and name.

    Ctrl+C or SIGTERM lets running requests, and a running handler, come to their end; a second one
    does not wait. Commands that have not returned 30 seconds after the grace for clients are left.

    Example: ontologia serve myapp.shipping --port 8080 --with-worker

    Example: ontologia serve --socket run/ontologia.sock --models myapp.models
    """
    from ontologia.cli.logged_worker import LoggedWorker
    from ontologia.cli.sockets import load_capabilities
    from ontologia.cli.worklog import logged

    if no_auth and token is not None:
        raise typer.BadParameter("there is a token, and --no-auth; give one of them")
    if capabilities and socket is None:
        raise typer.BadParameter("--capabilities are for the socket; give --socket PATH")
    if not modules and socket is None:
        raise typer.BadParameter("there is nothing to serve; give a MODULE, or --socket PATH")
    named = [*(modules or ()), *([] if models is None else [models])]
    own = load_capabilities(capabilities or ())
    with ExitStack() as stack:
        env = stack.enter_context(application(call, named, group, working=with_worker))
        server, worker = None, None
        if modules:
            from ontologia.web.serving import listen

            listener = stack.enter_context(listen(host, port))
            stack.enter_context(logged())
            _check(env, modules, listener, no_auth)
            worker = LoggedWorker(env) if with_worker else None
            server = _server(env, listener, None if no_auth else token or _new_token(), worker)
        else:
            stack.enter_context(logged())
            worker = LoggedWorker(env) if with_worker else None
        clients = _run(env, server, socket, own, worker)
    _report(call, server, clients, worker)


def _server(env: Env, listener: Listener, token: str | None, worker: LoggedWorker | None) -> Server:
    from ontologia.web import create_app
    from ontologia.web.serving import Server

    app = create_app(env, token=token, worker=worker, only_local=token is None)
    server = Server(app, listener, env.session.config)
    server.leave = _leave_commands
    return server


def _run(
    env: Env,
    server: Server | None,
    path: str | None,
    capabilities: list[Capability],
    worker: LoggedWorker | None,
) -> int | None:
    """Serve until stopped; how many clients the socket had, if there was one."""
    from ontologia.cli.sockets import Sockets
    from ontologia.engine.signals import stopping_on_signals

    def stop() -> None:
        for each in (server, sockets):
            if each is not None:
                each.stop()

    sockets: Sockets | None = None
    if path is not None:
        sockets = Sockets(env, path, capabilities, ended=stop)
    with stopping_on_signals(stop, hurry), _beside(stop, worker):
        if sockets is not None:
            sockets.start()
            log.info("serving the store at %s", path)
        try:
            if server is not None:
                commands = counted(len(env.registry.commands), "command")
                log.info("serving %s at %s", commands, server.url)
                server.serve_forever()
                stop()
        finally:
            if sockets is not None:
                sockets.join()
    return None if sockets is None else sockets.served


def _report(
    call: Call, server: Server | None, clients: int | None, worker: LoggedWorker | None
) -> None:
    answered = None if server is None else server.server_state.total_requests
    if call.json:
        counts = {"requests": answered, "worker": worker and worker.health_snapshot()}
        show_json(counts if clients is None else counts | {"clients": clients})
        return
    said = [] if answered is None else [f"{counted(answered, 'request')} answered"]
    said += [] if clients is None else [f"{counted(clients, 'client')} served"]
    said += [] if worker is None else [f"{counted(worker.done, 'event')} done"]
    say(f"stopped: {', '.join(said)}")


def _check(env: Env, modules: list[str], listener: Listener, no_auth: bool) -> None:
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
def _beside(stop: Callable[[], None], worker: LoggedWorker | None) -> Generator[None]:
    """Run a worker in a thread of its own. If it ends by itself, so does what is served."""
    if worker is None:
        yield
        return
    failures: list[BaseException] = []

    def run() -> None:
        try:
            worker.run_forever()
        except BaseException as error:  # noqa: BLE001 - raised below
            failures.append(error)
            stop()

    thread = threading.Thread(target=run, name="worker", daemon=True)
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join()
    if failures:
        raise failures[0]


def _leave_commands(running: int) -> None:
    """End the process while commands run that do not return."""
    from ontologia.cli.loops import leave

    log.error(
        "ended while commands were running that did not return (%d); what they had not committed was not "
        "written, and events that a worker was handling are given to a worker again",
        running,
    )
    leave(1)


def hurry() -> bool:
    """A second signal: threads that carry out commands cannot be interrupted, only left.

    What they have not committed is not written.
    """
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)
