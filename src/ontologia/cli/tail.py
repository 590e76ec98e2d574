"""`ontologia events tail`: what happens to events, as it happens."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

from ontologia.cli.call import Call
from ontologia.cli.output import harmless, show_json

if TYPE_CHECKING:
    from ontologia.store.events.following import News

_COLOURS = {"done": "green", "failed": "yellow", "dead_letter": "red", "retried": "cyan"}
_WIDEST = 11  # of the words in the second column


def tail(call: Call) -> None:
    """Follow a namespace: new events, and what becomes of them, until Ctrl+C, which is code 0.

    A line has the time, what happened (announced, claimed, done, failed, dead_letter, retried), the
    type, the event's id and, after them, the handler, the attempt and the error. Of what happened to
    an event between two looks, up to half a second apart, the last is told.

    Example: ontologia events tail --namespace orders
    """
    from ontologia.runtime.following import follow

    with call.reading() as session:
        looks = follow(session)
        try:
            next(looks)
            typer.echo(f"following namespace {session.namespace!r}; Ctrl+C ends it", err=True)
            for news in looks:
                for each in news:
                    _show(call, each)
                sys.stdout.flush()
        except KeyboardInterrupt:
            pass  # the one way to end it
        finally:
            looks.close()


def _show(call: Call, news: News) -> None:
    if call.json:
        show_json(news._asdict())
        return
    word = typer.style(news.what.ljust(_WIDEST), fg=_COLOURS.get(news.what))
    parts = [news.type, news.event_id]
    if news.handler is not None:
        parts += [news.handler, f"attempt {news.attempt}"]
    if news.error is not None:
        parts.append(" ".join(news.error.split()))
    typer.echo("  ".join([news.at[:23].replace("T", " "), word, *map(harmless, parts)]))
