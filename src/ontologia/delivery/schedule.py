"""When a schedule fires."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, tzinfo
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from ontologia import codec
from ontologia.errors import ConfigError, ConfigTypeError, shown
from ontologia.schema.event import Event, payload_of, types_of

_FIELDS = 5


class Schedule:
    """Announce `event` whenever `cron` says so: `Schedule(event=Cleanup(), cron="0 2 * * *")`.

    `cron` has the five usual fields: minute, hour, day of month, month, day of week (0 and 7 are
    Sunday; names like MON and JAN work; when both days are restricted either one fires). Times
    are UTC unless `tz` names a zone (`"Europe/Berlin"`). Where clocks go forward, a time that the
    day does not have fires once the clock has jumped; where they go back, a time that the day has
    twice fires once.
    """

    def __init__(self, event: Event, cron: str, *, tz: str | None = None) -> None:
        if not isinstance(event, Event):
            raise TypeError(f"a schedule announces an event, got {event!r}")
        if not isinstance(cron, str) or len(cron.split()) != _FIELDS:
            raise (ConfigError if isinstance(cron, str) else ConfigTypeError)(
                f"{shown(cron)} is no cron expression",
                hint="Five fields: minute, hour, day of month, month, day of week; "
                "'0 2 * * *' is every day at 02:00.",
            )
        self.event = event
        self.cron = cron
        self.tz = tz
        self._zone = _zone(tz)
        try:
            CronSim(cron, datetime.now(UTC))
        except CronSimError as error:
            raise ConfigError(f"{cron!r} is no cron expression: {error}") from error

    def __repr__(self) -> str:
        zone = f", tz={self.tz!r}" if self.tz else ""
        return f"Schedule(event={self.event!r}, cron={self.cron!r}{zone})"

    @property
    def key(self) -> str:
        """What makes two schedules the same one to all sessions: event, priority, cron and zone."""
        return self.keys[0]

    @property
    def keys(self) -> tuple[str, ...]:
        """Its key, and those that it had under former types of the event's class.

        The version of that class makes no difference where the fields are the same.
        """
        fields = codec.encode_checked(type(self.event).__shape__.encode(vars(self.event)))
        rest = (fields, str(self.event.priority), " ".join(self.cron.split()), self.tz or "")
        texts = ("\n".join((each, *rest)) for each in types_of(type(self.event)))
        return tuple(hashlib.sha256(text.encode()).hexdigest()[:32] for text in texts)

    def next_after(self, instant: datetime) -> datetime | None:
        """The first tick after this instant, in UTC; None if there is never another."""
        return next_tick(self.cron, instant, self._zone)

    def described(self) -> dict[str, Any]:
        """What the row of a session says of it."""
        return {
            "key": self.key,
            "type": type(self.event).__event_type__,
            "payload": payload_of(self.event),
            "priority": self.event.priority,
            "cron": self.cron,
            "tz": self.tz,
        }


def next_ticks(cron: str, tz: str | None, after: datetime, number: int) -> list[datetime]:
    """The next times of a schedule, in UTC; fewer if there are no more.

    ConfigError if this machine does not know the zone.
    """
    zone, found = _zone(tz), list[datetime]()
    tick = next_tick(cron, after, zone)
    while tick is not None and len(found) < number:
        found.append(tick)
        tick = next_tick(cron, tick, zone)
    return found


def next_tick(cron: str, instant: datetime, zone: tzinfo = UTC) -> datetime | None:
    """The first time after this instant at which a cron expression fires, in UTC; None if never."""
    for tick in CronSim(cron, instant.astimezone(zone)):
        found: datetime = tick.astimezone(UTC)
        # In the hour that a day has twice, the first one is found from within the second.
        if found > instant:
            return found
    return None


def _zone(name: Any) -> ZoneInfo:
    try:
        return ZoneInfo(name or "UTC")
    except (ZoneInfoNotFoundError, ValueError, TypeError, OSError) as error:
        raise (ConfigTypeError if isinstance(error, TypeError) else ConfigError)(
            f"tz={name!r} is no time zone of this machine",
            hint='Name one like "Europe/Berlin"; install the package tzdata where there are none.',
        ) from error
