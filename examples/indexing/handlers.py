"""Keeps the index as the folder is: `ontologia run indexing.handlers --workers 4`.

A handler may be interrupted anywhere and called again, and two of them may be at work on one
document at the same time, if it changes quickly. Nothing here minds: the keys of chunks come from
the text, `ensure` writes nothing that is true already, and what is left over of older texts is
looked for and deleted every time.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from ontologia import HandlerContext, Schedule, on_event

from .models import Chunk, Document, DocumentChanged, DocumentGone, Occurrence, ScanDue, Word

CHUNKS_PER_COMMIT = 10  # a commit costs a sync of the disk, whatever is in it

schedules = [Schedule(ScanDue(folder="texts"), "* * * * *")]  # every minute


@on_event(ScanDue, name="indexing.scan", priority=200)
def scan(ctx: HandlerContext[ScanDue]) -> None:
    """Announce what differs between the folder and the index."""
    folder = Path(ctx.event.folder)
    found = {path.name: digest(path.read_text()) for path in folder.glob("*.txt")}
    known = {each.path: each.digest for each in ctx.query().entities(Document).collect()}
    # What is emitted is stored with the acknowledgement of this event: all of it, or nothing.
    for path in sorted(found):
        if known.get(path) != found[path]:
            ctx.emit(DocumentChanged(folder=str(folder), path=path, digest=found[path]))
    for path in sorted(known.keys() - found.keys()):
        ctx.emit(DocumentGone(path=path))


@on_event(DocumentChanged, name="indexing.index")
def index(ctx: HandlerContext[DocumentChanged]) -> None:
    """Write the chunks of a document and their words, then say that they count."""
    path, wanted = ctx.event.path, ctx.event.digest
    known = ctx.query().entities(Document).where(Document.path == path).first()
    if known is None or known.digest != wanted:
        text = Path(ctx.event.folder, path).read_text()
        if digest(text) != wanted:
            return  # changed again since the scan; the next one will announce it
        chunks = enumerate(paragraphs(text))
        written = 0
        while batch := list(islice(chunks, CHUNKS_PER_COMMIT)):
            for number, paragraph in batch:
                ctx.ensure(objects_of(path, wanted, number, paragraph))
            written += len(batch)
            ctx.commit()
            ctx.renew()  # a long document takes longer than one lease
        ctx.ensure(Document(path=path, digest=wanted, chunks=written))
        ctx.commit()
        print(f"  {path}: {written} chunks\n", end="")  # in one piece: four print at a time
    delete_chunks(ctx, path, but=wanted)


@on_event(DocumentGone, name="indexing.forget")
def forget(ctx: HandlerContext[DocumentGone]) -> None:
    """Take a document out of the index. Questions about the past still find it."""
    for document in ctx.query().entities(Document).where(Document.path == ctx.event.path).collect():
        ctx.delete(document)
        ctx.commit()
        print(f"  {document.path} is gone\n", end="")
    delete_chunks(ctx, ctx.event.path, but="")


def delete_chunks(ctx: HandlerContext[Any], path: str, *, but: str) -> None:
    """Delete what the index has of a document, except that of one text."""
    chunks = ctx.query().entities(Chunk).where(Chunk.document == path, Chunk.digest != but)
    words = ctx.query().relations(Occurrence)
    words = words.where(Occurrence.document == path, Occurrence.digest != but)
    ctx.delete(chunks.collect())
    ctx.delete(words.collect())
    ctx.commit()


def objects_of(path: str, digest: str, number: int, text: str) -> Iterator[Any]:
    """One chunk and its words, as the index has them."""
    key = f"{path}#{digest[:8]}#{number}"
    yield Chunk(id=key, document=path, digest=digest, text=text)
    for word, count in Counter(words_of(text)).items():
        yield Word(text=word)
        yield Occurrence(left_key=word, right_key=key, count=count, document=path, digest=digest)


def paragraphs(text: str) -> Iterator[str]:
    return (part.strip() for part in text.split("\n\n") if part.strip())


def words_of(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
