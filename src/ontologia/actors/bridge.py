"""The bridge: a store for actors, and for programs in any language.

loop = ActorLoop(bridged(session, [memory]), adapters=[UnixSocketAdapter("run/ontologia.sock")])
"""

from __future__ import annotations

from collections.abc import Sequence

from ontologia.actors.bridge_events import events
from ontologia.actors.bridge_state import state
from ontologia.actors.bridge_system import commands, system
from ontologia.actors.capability import Capability
from ontologia.actors.durable import durable_timer
from ontologia.actors.mirror import mirror
from ontologia.actors.storing import Place
from ontologia.commands import Env
from ontologia.runtime.session import Session
from ontologia.store.events import checks


def bridged(
    datastore: Session | Env, capabilities: Sequence[Capability] = (), *, name: str = "default"
) -> list[Capability]:
    """These capabilities, and those that reach a store.

    `State.Get`, `State.Query`, `State.History`, `State.Ensure`, `Event.Publish`, `Event.Inspect`,
    `Command.Dispatch`, `System.Describe`, and `Timer.Set` with `durable`. Commands are those of an
    `Env`; a session alone has none. Events of the store are told to those of the capabilities that
    subscribed to them, once among all loops of a `name`. Session and env stay the caller's.
    """
    checks.name("a loop's name", name)
    env = datastore if isinstance(datastore, Env) else Env(datastore)
    place = Place(env.session)
    own = [
        durable_timer(place, name),
        state(place),
        events(place),
        commands(place, env),
    ]
    known = [*own, *capabilities]
    known.append(mirror(env.session, name, tuple(known)))
    return [*known, system(place, env, known)]
