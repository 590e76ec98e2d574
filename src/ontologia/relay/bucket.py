"""A prefix of a bucket: where relays write events, and where intakes read them.

A message is one object, `<prefix>/<namespace>/messages/<id>.json`: a CloudEvent in structured mode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING

from ontologia import codec
from ontologia.clock import Clock
from ontologia.errors import ConnectionLostError, InvalidValueError
from ontologia.queues.cloudevents import Message, document_of, read_document
from ontologia.relay.endpoints import Arrival, Portion, Progress, problem_of

if TYPE_CHECKING:
    from ontologia.store.s3.bucket import Bucket, Listed

_THREADS = 8
_PAGE = 1_000
_POLL = 1.0  # seconds between two looks for new messages
_WHOLE = 60.0  # seconds between two listings of all messages
_PART = ""
"""An intake of a bucket has one part, whose position counts what was read."""


def _folder(namespace: str) -> str:
    from ontologia.store.s3.bucket import encoded

    return f"{encoded(namespace)}/messages"


def _bucket(uri: str) -> Bucket:
    from ontologia.store.s3.bucket import Bucket

    return Bucket(uri)


class BucketTarget:
    """Writes messages as objects; see `Target`."""

    def __init__(self, uri: str) -> None:
        self._bucket = _bucket(uri)
        self.uri = self._bucket.uri
        self._pool: ThreadPoolExecutor | None = None

    def open(self) -> None:
        """One request, which a bucket that is not there, or not ours, does not answer."""
        next(self._bucket.listing("", limit=1), None)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="ontologia-relay")

    def send(self, messages: Sequence[Message], stopped: Callable[[], bool]) -> Mapping[int, str]:
        if self._pool is None:
            self.open()
        pool = self._pool
        assert pool is not None  # noqa: S101 - it is open
        chains: dict[str, list[tuple[int, Message]]] = {}
        for numbered in enumerate(messages):
            chains.setdefault(numbered[1].root, []).append(numbered)
        sending = [pool.submit(self._send, each, stopped) for each in chains.values()]
        refused: dict[int, str] = {}
        failed: Exception | None = None
        for each in sending:
            try:
                refused |= each.result()
            except Exception as error:  # noqa: BLE001 - raised when all have ended
                failed = failed or error
        if failed is not None:
            raise failed
        return refused

    def _send(
        self, messages: Sequence[tuple[int, Message]], stopped: Callable[[], bool]
    ) -> dict[int, str]:
        from ontologia.store.s3.bucket import encoded

        refused: dict[int, str] = {}
        for at, message in messages:
            if stopped():
                raise ConnectionLostError(f"{self.uri} was left before it had all events")
            key = f"{_folder(message.namespace or '')}/{encoded(message.id)}.json"
            try:
                if not self._write(key, message):
                    refused[at] = (
                        f"{self.uri}/{key} is another event with this id, maybe of another store; "
                        "ids must be unique"
                    )
            except InvalidValueError as error:
                refused[at] = error.args[0]
        return refused

    def _write(self, key: str, message: Message) -> bool:
        """Write a message, unless it is there already; whether it is there."""
        body = document_of(message)
        while True:
            done = self._bucket.contend(key, body, None)
            if done.etag is not None:
                return True
            if done.found is not None:
                return _unsourced(done.found.body) == _unsourced(body)
            # It was deleted after it was in the way.

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None


def _unsourced(document: bytes) -> str | None:
    """A message but for its source: stores that have an event send the same. None if it is no message."""
    try:
        found = codec.decode(document)
        if isinstance(found, dict):
            return codec.encode({**found, "source": None})
    except InvalidValueError:
        pass
    return None


class BucketSource:
    """Reads the messages of a namespace; see `Source`.

    Ids do not tell what is new: an event may be relayed long after a later one. So what is behind
    the last message is looked for often, and everything once a minute; the store knows the names of
    those that were read while the bucket has them.
    """

    def __init__(self, uri: str, namespace: str, clock: Clock) -> None:
        self._bucket = _bucket(uri)
        self.uri = self._bucket.uri
        self._folder = _folder(namespace)
        self._clock = clock
        self._progress: Progress | None = None
        self._pages: Iterator[list[str]] = iter(())
        self._waiting: list[str] = []
        """Names that were listed, and are to be read."""
        self._last = ""
        self._read = 0
        self._whole_at = self._poll_at = float("-inf")
        self.at_end = False

    def open(self, progress: Progress) -> None:
        """List everything anew."""
        self._progress = progress
        self._read = progress.positions().get(_PART, 0)
        self._pages, self._waiting = iter(()), []
        self._whole_at = self._poll_at = float("-inf")
        self.at_end = False
        next(self._bucket.listing(self._folder, limit=1), None)

    def read(self, most: int, seconds: float, stopped: Callable[[], bool]) -> Portion | None:
        if not self._waiting and not self._list(seconds, stopped):
            return None
        names, self._waiting = self._waiting[:most], self._waiting[most:]
        portion = Portion(names=names)
        with ThreadPoolExecutor(_THREADS) as pool:
            portion.arrivals = [each for each in pool.map(self._get, names) if each is not None]
        self._read += len(names)
        portion.positions = {_PART: (self._read, len(self._waiting))}
        return portion

    def _list(self, seconds: float, stopped: Callable[[], bool]) -> bool:
        """Look for messages that were not read; whether there are some."""
        while not self._waiting:
            page = next(self._pages, None)
            if page is not None:
                self._waiting = self._unread(page)
                continue
            now = self._clock.monotonic()
            if now < self._poll_at:
                self.at_end = True
                deadline = min(self._poll_at, now + seconds)
                while not stopped() and (left := deadline - self._clock.monotonic()) > 0:
                    self._clock.sleep(min(left, 0.05))
                if self._clock.monotonic() < self._poll_at:
                    return False
                now = self._clock.monotonic()
            self.at_end = False
            self._poll_at = now + _POLL
            if now >= self._whole_at:
                self._whole_at = now + _WHOLE
                self._pages = self._whole()
            else:
                self._pages = self._behind()
        return True

    def _unread(self, page: list[str]) -> list[str]:
        assert self._progress is not None  # noqa: S101 - it is open
        known = self._progress.known(page)
        return [name for name in page if name not in known]

    def _behind(self) -> Iterator[list[str]]:
        """Pages of what is listed after the last message."""
        return self._paged(self._bucket.listing(self._folder, after=self._key(self._last)))

    def _whole(self) -> Iterator[list[str]]:
        """Pages of everything; what is not there any more is forgotten on the way."""
        assert self._progress is not None  # noqa: S101 - it is open
        after = ""
        for page in self._paged(self._bucket.listing(self._folder)):
            if page == sorted(page) and after < page[0]:
                self._progress.prune(after, page[-1], page)
                after = page[-1]
            yield page

    def _paged(self, listed: Iterator[Listed]) -> Iterator[list[str]]:
        while page := [self._name(each.key) for each in islice(listed, _PAGE)]:
            self._last = max(self._last, page[-1])
            yield page

    def _key(self, name: str) -> str | None:
        return f"{self._folder}/{name}" if name else None

    def _name(self, key: str) -> str:
        return key.removeprefix(f"{self._folder}/")

    def _get(self, name: str) -> Arrival | None:
        """A message; None if it was deleted since it was listed."""
        key = f"{self._folder}/{name}"
        try:
            found = self._bucket.get(key)
        except InvalidValueError as error:  # it is too large to be read
            return Arrival(key, b"", problem=error.args[0])
        if found is None:
            return None
        try:
            return Arrival(key, found.body, read_document(found.body, self._clock.now()))
        except Exception as error:  # noqa: BLE001 - whatever is wrong with it, the intake goes on
            return Arrival(key, found.body, problem=problem_of(error))

    def lag(self, progress: Progress) -> int:
        names = (self._name(each.key) for each in self._bucket.listing(self._folder))
        unread = 0
        while page := list(islice(names, _PAGE)):
            unread += len(page) - len(progress.known(page))
        return unread

    def close(self) -> None:
        """Nothing: a bucket has no connection to close."""
