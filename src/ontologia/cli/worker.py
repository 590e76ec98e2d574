"""`ontologia worker MODULE...`: a process that handles the events of commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ontologia.cli.application import Group, Modules, application
from ontologia.cli.call import Call
from ontologia.cli.output import say, show_json

if TYPE_CHECKING:
    from ontologia.commands import Env


def worker(call: Call, modules: Modules, group: Group = "default") -> None:
    """Give the events of commands to the handlers of modules until stopped.

    Handlers are the functions, and the methods of models, decorated with @api.on_event. The working
    directory is looked at first. Every group of workers is given every event; within a group, one
    of them is. The log, with the ids of events, goes to stderr, and a terminal has a status line.

    Ctrl+C or SIGTERM lets the running handler come to its end; a second one does not wait.

    Example: ontologia worker myapp.shipping --group mails
    """
    from ontologia.cli.logged_worker import LoggedWorker
    from ontologia.cli.worklog import shown

    with application(call, modules, group, working=True) as env:
        _check(env, modules)
        running = LoggedWorker(env)
        with shown(env.session, running, lambda: running.stopping):
            running.run_forever()
    if call.json:
        show_json({"done": running.done, "failed": running.failed})
    else:
        say(f"stopped: {running.done:,} done, {running.failed:,} failed attempts")


def _check(env: Env, modules: list[str]) -> None:
    from ontologia.errors import ConfigError, NotFoundError

    provider = env.session.config.default_message_broker_provider
    if provider not in ("store", "kafka"):
        raise ConfigError(
            f"the queue provider is {provider}, and no other process can see its events",
            hint="Set default_message_broker_provider to store or kafka, or handle them beside the server: "
            "ontologia serve --with-worker.",
        )
    if not env.registry.event_names:
        raise NotFoundError(
            f"{', '.join(modules)}: there are no handlers of events",
            hint='Decorate functions, or methods of models: @api.on_event("some.event").',
        )
