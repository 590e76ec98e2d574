"""Events, 4: one event, many commits.

Run it: python examples/events/batched_commits.py
"""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ontologia import Entity, Event, Field, HandlerContext, Session, on_event


class Record(Entity):
    id: Field[str] = Field(primary_key=True)
    name: Field[str]


class BulkImport(Event):
    file_path: Field[str]


def read_csv(file_path: str) -> Iterator[dict[str, str]]:
    with Path(file_path).open(newline="") as file:
        yield from csv.DictReader(file)


@on_event(BulkImport)
def import_large_dataset(ctx: HandlerContext[BulkImport]) -> None:
    file_path = ctx.event.file_path

    batch: list[Record] = []
    for row in read_csv(file_path):
        batch.append(Record(**row))

        if len(batch) >= 1000:
            ctx.ensure(batch)
            ctx.commit()  # commit every 1000 records
            batch = []

    if batch:
        ctx.ensure(batch)
        ctx.commit()  # commit remainder


def main(folder: Path) -> None:
    source = folder / "records.csv"
    source.write_text("id,name\n" + "".join(f"r{n},Record {n}\n" for n in range(2500)))

    with Session(f"sqlite:///{folder / 'app.db'}") as session:
        print("Import 2,500 records:")
        session.commit(event=BulkImport(file_path=str(source)))
        session.run([import_large_dataset], max_iterations=1)
        for commit in reversed(session.list_commits()):
            print(f"  commit {commit['id']}: {len(session.list_commit_changes(commit['id']))}")

        print("The same file again, as after a crash before the acknowledgement:")
        session.commit(event=BulkImport(file_path=str(source)))
        session.run([import_large_dataset], max_iterations=1)
        print(f"  still {session.query().entities(Record).count()} records")
        print(f"  still at commit {session.head}: what is true already is not written again")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
