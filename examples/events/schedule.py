"""Events, 3: an event that is announced at certain times.

Run it: python examples/events/schedule.py

So that nobody has to wait for two in the morning, the session gets a clock that can be moved.
"""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ontologia import (
    Entity,
    Event,
    Field,
    HandlerContext,
    OntologiaConfig,
    Schedule,
    Session,
    on_event,
)
from ontologia.testing import ManualClock


class Report(Entity):
    id: Field[str] = Field(primary_key=True)
    made_at: Field[datetime] = Field(index=True)


class SystemCleanup(Event):
    cutoff_days: Field[int] = Field(default=90)
    priority: int = 50


# Define schedule
cleanup_schedule = Schedule(
    event=SystemCleanup(cutoff_days=90),
    cron="0 2 * * *",  # daily at 2am
)


# Handle scheduled event
@on_event(SystemCleanup)
def cleanup_old_data(ctx: HandlerContext[SystemCleanup]) -> None:
    cutoff_days = ctx.event.cutoff_days
    cutoff = datetime.now(UTC) - timedelta(days=cutoff_days)
    old = ctx.query().entities(Report).where(Report.made_at < cutoff).collect()
    print(f"  cleanup deletes {[report.id for report in old]}")
    ctx.delete(old)
    ctx.commit()


def main(folder: Path) -> None:
    now = datetime.now(UTC)
    half_past_one = now.replace(hour=1, minute=30, second=0, microsecond=0)
    # Nothing is due for half an hour: the loop may sleep for an hour, and this clock does not
    # wait, it jumps.
    config = OntologiaConfig(clock=ManualClock(half_past_one), event_poll_interval_ms=3_600_000)

    # Register with session
    session = Session(
        datastore_uri=f"sqlite:///{folder / 'app.db'}",
        namespace="system-tasks",  # or omit to use default namespace
        config=config,
    )
    with session:
        session.ensure(Report(id="old", made_at=now - timedelta(days=100)))
        session.ensure(Report(id="new", made_at=now - timedelta(days=10)))
        session.commit()

        print("It is half past one. The session runs until two o'clock has been:")
        session.run(handlers=[cleanup_old_data], schedules=[cleanup_schedule], max_iterations=2)

        left = session.query().entities(Report).collect()
        print(f"Left: {[report.id for report in left]}")
        for event in session.event_store.list_events("system-tasks"):
            print(f"{event['type']}, announced at {event['created_at'][11:16]}: {event['status']}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
