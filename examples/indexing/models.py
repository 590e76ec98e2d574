"""What the index is made of, and what happens to it.

A document is cut into chunks, and every word of a chunk points to it. A chunk carries the digest of
the text that it was cut from: while a changed document is indexed anew, its old chunks still answer,
and at the end one commit names the digest that counts from then on. So nobody ever finds half of a
document.
"""

from __future__ import annotations

from ontologia import Entity, Event, Field, Relation


class Document(Entity):
    """A file, as far as the index knows it."""

    path: Field[str] = Field(primary_key=True)
    digest: Field[str]
    chunks: Field[int]


class Chunk(Entity):
    """A paragraph of a document."""

    id: Field[str] = Field(primary_key=True)
    document: Field[str] = Field(index=True)
    digest: Field[str]
    text: Field[str]


class Word(Entity):
    """A word that occurs somewhere."""

    text: Field[str] = Field(primary_key=True)


class Occurrence(Relation[Word, Chunk]):
    """The inverted index: from a word to where it stands."""

    count: Field[int]
    document: Field[str] = Field(index=True)
    digest: Field[str]


class ScanDue(Event):
    """Time to look at the folder."""

    folder: Field[str]
    priority: int = 200


class DocumentChanged(Event):
    """A file is new, or has another text than the index knows."""

    folder: Field[str]
    path: Field[str]
    digest: Field[str]


class DocumentGone(Event):
    """A file that the index knows is not there any more."""

    path: Field[str]
