"""`ontologia console`: a store in the browser."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ontologia.cli.call import Call, not_empty
from ontologia.cli.models import Models
from ontologia.cli.output import show_json

if TYPE_CHECKING:
    from ontologia.web.console.app import Console
    from ontologia.web.serving import Listener

log = logging.getLogger(__name__)


def console(
    call: Call,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", callback=not_empty, help="Where to listen.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, metavar="N", help="0 takes one that is free.")
    ] = 8765,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file", metavar="FILE", help="A file with the token for the login page."
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-host", metavar="NAME", help="A name that browsers may use; may be repeated."
        ),
    ] = None,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Show everything, and change nothing.")
    ] = False,
    label: Annotated[
        str | None,
        typer.Option(metavar="TEXT", callback=not_empty, help="On every page: prod, staging."),
    ] = None,
    redact: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY", help="Hide the values of this key; may be repeated."),
    ] = None,
    models: Models = None,
) -> None:
    """Serve the console of a store, until stopped, and print a URL that signs in once.

    It shows what waits and what failed, and has the verbs of the events commands. The login page
    asks for a name, which is recorded with everything that is done; with --token-file also for the
    token in that file. Without it the URL is the only way in, for 15 minutes. Any other address than
    those of this machine needs --token-file and --allow-host. Needs pip install 'ontologia[web]'.

    Example: ontologia console --datastore-uri shop.db --label staging
    """
    from ontologia.cli.worklog import logged
    from ontologia.web.serving import listen

    token = None if token_file is None else _token(token_file)
    contents = None
    if models is not None:
        from ontologia.cli.models import load_models

        contents = load_models(models)
    types = {}
    if contents is not None:
        types = {
            "entity_types": contents.entity_types,
            "relation_types": contents.relation_types,
        }
    with listen(host, port) as listener, call.reading(**types) as session, logged():
        from ontologia.web import console as console_of

        _check(listener, token, allow_host)
        app = console_of(
            session,
            token=token or _new_token(),
            read_only=read_only,
            models=models,
            redact=redact or (),
            label=label,
            hosts=allow_host,
        )
        serve(call, app, listener)


def serve(
    call: Call,
    app: Console,
    listener: Listener,
    began: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve a console until a signal comes; `began` is told the URL that signs in."""
    from ontologia.cli.serve import hurry
    from ontologia.engine.signals import stopping_on_signals
    from ontologia.web.serving import Server

    server = Server(app, listener, app.session.config)
    server.on_shutdown = app.live.end
    url = f"{server.url}{app.login_path()}"
    if call.json:
        show_json({"url": server.url, "login": url})
    else:
        typer.echo(f"The console is at {server.url}")
        typer.echo(f"Sign in, once, within 15 minutes: {url}")
    began(url)
    try:
        with stopping_on_signals(server.stop, hurry):
            server.serve_forever()
    finally:
        app.close()


def _check(listener: Listener, token: str | None, hosts: list[str] | None) -> None:
    from ontologia.errors import ConfigError
    from ontologia.web.serving import is_loopback

    if not is_loopback(listener) and (token is None or not hosts):
        raise ConfigError(
            "other machines reach this address: the console needs a token and its names there",
            hint="Give --token-file FILE and --allow-host NAME, or listen at 127.0.0.1 behind a proxy.",
        )


def _token(path: Path) -> str:
    from ontologia.errors import ConfigError

    try:
        text = path.read_text("ascii").strip()
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or "it is not ASCII"
        raise ConfigError(f"the token cannot be read from {path}: {why}") from error
    if len(text) < 16:
        raise ConfigError(
            f"the token in {path} has fewer than 16 characters",
            hint="python -c 'import secrets; print(secrets.token_urlsafe(32))' makes one.",
        )
    return text


def _new_token() -> str:
    """One that is printed nowhere: the login URL is the way in."""
    import secrets

    return secrets.token_urlsafe(32)
