"""What the assistant remembers. Extensions name it by a string, and the host knows the class."""

from __future__ import annotations

from datetime import datetime

from ontologia import Entity, Field


class Reminder(Entity):
    """Something that somebody wants to be reminded of."""

    id: Field[str] = Field(primary_key=True)
    text: Field[str]
    due: Field[datetime] = Field(index=True)
    told: Field[bool] = Field(default=False, index=True)
