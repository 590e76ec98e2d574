"""Events, 1: a handler for one class of events, and the commit it asks for.

Run it: python examples/events/simple_handler.py
"""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime
from pathlib import Path

from ontologia import Entity, Event, Field, HandlerContext, Session, on_event


class EmailLog(Entity):
    user_id: Field[str] = Field(primary_key=True)
    type: Field[str]
    sent_at: Field[datetime]


class UserSignup(Event):
    user_id: Field[str]
    email: Field[str]


@on_event(UserSignup)
def send_welcome_email(ctx: HandlerContext[UserSignup]) -> None:
    # ctx.event is strongly typed as UserSignup
    user_id = ctx.event.user_id
    email = ctx.event.email

    print(f"  to {email}: welcome, {user_id}")  # here a mail service would be called

    ctx.ensure(EmailLog(user_id=user_id, type="welcome", sent_at=datetime.now(UTC)))
    ctx.commit()  # explicit commit required


def main(folder: Path) -> None:
    with Session(datastore_uri=f"sqlite:///{folder / 'app.db'}") as session:
        print("Two users sign up; each signup is stored as an event.")
        session.commit(event=UserSignup(user_id="u1", email="ada@example.com"))
        session.commit(event=UserSignup(user_id="u2", email="bob@example.com"))

        print("The handler runs:")
        session.run([send_welcome_email], max_iterations=1)

        print("What it committed:")
        for entry in session.query().entities(EmailLog).order_by(EmailLog.user_id).collect():
            print(f"  commit {entry.meta().commit_id}: {entry.type} mail to {entry.user_id}")

        print("What became of the events:")
        for event in session.event_store.list_events(session.namespace):
            print(f"  {event['type']}: {event['status']}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
