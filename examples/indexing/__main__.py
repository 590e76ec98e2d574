"""The face of the index: `python -m indexing` shows it at work; `--help` tells the rest."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ontologia import OntologiaConfig, Session

from .handlers import forget, index, scan, schedules
from .models import Chunk, Document, Occurrence, ScanDue, Word
from .searching import search

HANDLERS: list[Callable[..., Any]] = [scan, index, forget]
FOLDER = Path("texts")
VOCABULARY = """
    harbour light ship rope captain storm letter island bread winter morning lamp door
    river stone garden music table window night road horse market bell silence
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m indexing", description=__doc__)
    parser.add_argument("--datastore-uri", default="indexing.db", help="a file or postgresql://")
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("demo", help="index a folder, change it, look back (the default)")
    commands.add_parser("watch", help="look at the folder texts/ every minute, until Ctrl+C")
    asking = commands.add_parser("search", help="find paragraphs with all of these words")
    asking.add_argument("words", nargs="+")
    asking.add_argument("--as-of", type=int, metavar="COMMIT", help="in the index as it was then")
    chosen = parser.parse_args()

    with Session(
        chosen.datastore_uri,
        entity_types=[Document, Chunk, Word],
        relation_types=[Occurrence],
        config=OntologiaConfig(event_poll_interval_ms=0),  # no pause between a thousand events
    ) as session:
        if chosen.command == "watch":
            session.run(HANDLERS, schedules=schedules, workers=4)
        elif chosen.command == "search":
            show(session, " ".join(chosen.words), as_of=chosen.as_of)
        else:
            demo(session)


def demo(session: Session) -> None:
    print(f"Twenty-four texts in {FOLDER}/ are indexed, four at a time:")
    FOLDER.mkdir(exist_ok=True)
    for number in range(24):
        (FOLDER / f"{number:02}.txt").write_text(written(number))
    look(session)
    before = session.head
    words = session.query().entities(Word).count()
    places = session.query().relations(Occurrence).count()
    print(f"The index has {words} words in {places} places. Captain and storm are in:")
    show(session, "captain storm")

    print("One text is written anew, and one is gone. Only those two are looked into:")
    (FOLDER / "07.txt").write_text("Captain! Captain! Captain! The storm, the storm!\n\nSilence.\n")
    (FOLDER / "11.txt").unlink()
    look(session)
    print("Captain and storm are now in:")
    show(session, "captain storm")
    print(f"And in the index as it was, as of commit {before}:")
    show(session, "captain storm", as_of=before)


def look(session: Session) -> None:
    """What the schedule does every minute, now; and whatever follows from it."""
    session.commit(event=ScanDue(folder=str(FOLDER)))
    session.run(HANDLERS, workers=4, max_iterations=1)


def show(session: Session, text: str, *, as_of: int | None = None) -> None:
    hits = search(session, text, as_of=as_of)
    for hit in hits[:2]:
        print(f"  {hit.path}, {hit.score} times: {hit.text[:50]}")
    print(f"  {len(hits)} paragraphs")


def written(number: int) -> str:
    """A text of thirty paragraphs, the same at each run."""
    words = VOCABULARY.split()
    return "\n\n".join(
        " ".join(words[(number * 7 + part * 3 + step * step) % len(words)] for step in range(12))
        for part in range(30)
    )


if __name__ == "__main__":
    main()
