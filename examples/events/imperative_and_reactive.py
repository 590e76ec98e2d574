"""Events, 5: a program commits and announces it; a handler takes it from there.

Run it: python examples/events/imperative_and_reactive.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from ontologia import Entity, Event, Field, HandlerContext, Session, on_event


class User(Entity):
    id: Field[str]
    email: Field[str]


class Workspace(Entity):
    user_id: Field[str] = Field(primary_key=True)
    name: Field[str]


class UserCreated(Event):
    user_id: Field[str]


# Reactive: handler picks up the event (in same namespace)
@on_event(UserCreated)
def setup_user_workspace(ctx: HandlerContext[UserCreated]) -> None:
    user_id = ctx.event.user_id  # type-safe access!
    ctx.ensure(Workspace(user_id=user_id, name=f"Workspace of {user_id}"))
    ctx.commit()
    print(f"  the handler commits {ctx.commit_id}")


def main(folder: Path) -> None:
    # Imperative: trigger event manually
    session = Session(
        datastore_uri=f"sqlite:///{folder / 'app.db'}",
        namespace="users",  # or omit to use default namespace
    )
    with session:
        print("The user and the event that announces it are one transaction:")
        session.ensure(User(id="u1", email="user@example.com"))
        number = session.commit(event=UserCreated(user_id="u1"))
        print(f"  the program commits {number}")

        print("The handler may run later, here or in another process:")
        session.run([setup_user_workspace], max_iterations=1)

        for workspace in session.query().entities(Workspace).collect():
            print(f"  {workspace.name}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
