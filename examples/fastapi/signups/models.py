"""Users, and the mail that welcomes them."""

from __future__ import annotations

from ontologia import Entity, Event, Field


class User(Entity):
    """Somebody who signed up."""

    id: Field[str] = Field(primary_key=True)
    email: Field[str]


class Welcome(Entity):
    """A mail that was sent. There is one for each user."""

    user_id: Field[str] = Field(primary_key=True)
    email: Field[str]


class UserSignedUp(Event):
    """Announced in the transaction that stores a user."""

    user_id: Field[str]
