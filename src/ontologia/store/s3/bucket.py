"""A prefix of a bucket on any S3-compatible service: objects, conditional writes, listings.

Assumed of the service: a read sees the writes before it, a listing is in the order of the keys'
bytes, and PUT knows `If-None-Match: *` and `If-Match`. Every request is counted, since each is
paid for.
"""

from __future__ import annotations

import logging
import os
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, unquote, urlsplit

from ontologia.errors import (
    ConnectionLostError,
    DatabaseError,
    InvalidValueError,
    OntologiaError,
    StoreOpenError,
    shown,
)

log = logging.getLogger(__name__)
T = TypeVar("T")

LONGEST_KEY = 1_024
"""Bytes that S3 allows a key, with the prefix."""
LARGEST = 64 * 1024**2
"""Bytes of an object that is read."""
PAGE = 1_000
"""Keys that one listing request answers with at most."""
_TRIES = 6
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 3.0  # seconds, before a request is sent again
_CONNECT, _TIMEOUT = "5s", "15s"
_PATIENCE = 15.0  # seconds after which a request is not sent again
_URI = re.compile(r"s3://([^/?#]+)(?:/([^?#]*))?", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]")
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([A-Za-z0-9.]{1,60})</Code>")
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_CREDENTIALS = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
_AGAIN = ("409", "429", "500", "502", "503", "504")
_SLOW = ("SlowDown", "RequestTimeout", "InternalError", "ServiceUnavailable")
_IDENTITY = (
    *("InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "ExpiredToken"),
    *("AuthorizationHeaderMalformed", "InvalidClientTokenId", "TokenRefreshRequired"),
)


class Stored(NamedTuple):
    """An object as it was read."""

    body: bytes
    etag: str
    """Stands for this body, in a write that is to replace no other."""
    metadata: Mapping[str, str]
    """What its writer added, under names in small letters."""


class Contended(NamedTuple):
    """What came of a write on a condition."""

    etag: str | None
    """Of what was written; None if the condition did not hold."""
    found: Stored | None
    """What is there then; None if nothing is."""


class Listed(NamedTuple):
    """An object as a listing shows it."""

    key: str
    etag: str
    size: int


class Bucket:
    """The objects under `s3://bucket/prefix`; keys are relative to the prefix. Thread-safe.

    Credentials come from AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, or from
    the machine's role; AWS_REGION, AWS_ENDPOINT_URL and AWS_ALLOW_HTTP say where the service is.
    Opening sends no request. A request that fails is sent again, five times at most and with longer
    and longer pauses, when the service is busy, broken or cannot be reached; then it raises
    ConnectionLostError. StoreOpenError if the bucket does not exist, or the credentials are wrong.
    """

    def __init__(self, uri: str, *, pause: Callable[[float], None] = time.sleep) -> None:
        """`pause` waits between two tries of a request, in seconds."""
        self.name, self.prefix = parse(uri)
        self.uri = f"s3://{self.name}/{self.prefix}".rstrip("/")
        self.requests: Counter[str] = Counter()
        """The number of requests sent, by `GET`, `PUT`, `LIST` and `DELETE`."""
        self._counting = threading.Lock()
        self._pause = pause
        self._hurry = False
        self._obstore: Any = _driver()
        self._path = f"{self.prefix}/" if self.prefix else ""
        self._objects = self._opened()

    def _opened(self) -> Any:
        endpoint = next(filter(None, map(os.environ.get, _ENDPOINTS)), None)
        allow_http = os.environ.get("AWS_ALLOW_HTTP", "").strip().lower() in ("true", "1", "yes")
        if endpoint is not None:
            _check_endpoint(endpoint, allow_http)
        options: dict[str, Any] = {"connect_timeout": _CONNECT, "timeout": _TIMEOUT}
        try:
            return self._obstore.store.S3Store(
                self.name,
                **({} if endpoint is None else {"endpoint": endpoint.rstrip("/")}),
                client_options={**options, "allow_http": allow_http},
                # It does not say what it sent before an answer, and a 412 means another thing then.
                retry_config={"max_retries": 0},
            )
        except Exception as error:  # noqa: BLE001 - the driver's are of many kinds
            raise StoreOpenError(
                f"{self.uri} cannot be opened: an AWS_… variable of the environment has a value "
                f"that the S3 client refuses ({type(error).__name__})",
                hint="Check AWS_REGION, AWS_ENDPOINT_URL and AWS_ALLOW_HTTP.",
            ) from None  # its message may repeat the value, and that may be a secret

    def hurry(self) -> None:
        """Send no request twice from now on: somebody waits for the end."""
        self._hurry = True

    def probe(self) -> None:
        """List nothing, once: StoreOpenError if the bucket or the credentials are wrong."""
        self._page("", self.prefix or None, None, tries=1)

    # -- objects ----------------------------------------------------------------------------------

    def get(self, key: str) -> Stored | None:
        """The object of this key; None if there is none. One request.

        InvalidValueError for an object of more than 64 MiB.
        """
        path = self._full(key)

        def read() -> Stored:
            found = self._obstore.get(self._objects, path)
            if found.meta["size"] > LARGEST:
                raise InvalidValueError(
                    f"{self.uri}/{key} has {found.meta['size']} bytes, and at most {LARGEST} are read"
                )
            metadata = {name: value for name, value in found.attributes.items() if name.islower()}
            return Stored(bytes(found.bytes()), found.meta["e_tag"], metadata)

        try:
            return self._send("GET", key, read)
        except _Missing:
            return None

    def put(self, key: str, body: bytes, metadata: Mapping[str, str] | None = None) -> str:
        """Write an object, whether there was one or not; its ETag. One request.

        `metadata` holds visible ASCII characters, at most 2,048 bytes in all.
        """
        return self._write(key, body, metadata, "overwrite").etag or ""

    def create(
        self, key: str, body: bytes, metadata: Mapping[str, str] | None = None
    ) -> str | None:
        """Write an object that does not exist; its ETag, or None if there is one.

        One request, or two if there is one. Idempotent when it is sent again: an object with this
        very body is taken for one's own. So two writers that must not both win write bodies that
        differ, with a token.
        """
        return self._write(key, body, metadata, "create").etag

    def replace(self, key: str, body: bytes, etag: str) -> str | None:
        """Write an object that is still as `etag` says; the new ETag, or None if it is not.

        None also if it does not exist any more. `body` differs from the body that it replaces,
        since equal bodies have equal ETags. Costs and repeats as `create`.
        """
        return self._write(key, body, None, {"e_tag": etag}).etag

    def contend(self, key: str, body: bytes, etag: str | None) -> Contended:
        """`create`, or with an ETag `replace`; what is there instead, if another was first."""
        return self._write(key, body, None, "create" if etag is None else {"e_tag": etag})

    def delete(self, *keys: str) -> None:
        """Delete objects, whether they exist or not. One request for every 1,000."""
        for first in range(0, len(keys), PAGE):
            some = [self._full(key) for key in keys[first : first + PAGE]]
            with suppress(_Missing):
                self._send(
                    "DELETE", keys[first], partial(self._obstore.delete, self._objects, some)
                )

    def listing(
        self, folder: str, *, after: str | None = None, limit: int | None = None
    ) -> Iterator[Listed]:
        """The objects under a folder, by the bytes of their keys, from the one behind `after`.

        One request for every 1,000 that are taken from the iterator; they need not all be.
        """
        under = self._full(folder).rstrip("/")
        behind = None if after is None else self._full(after)
        left = limit
        while left is None or left > 0:
            page = self._page(folder, under, behind)
            for each in page[:left]:
                yield Listed(each["path"][len(self._path) :], each["e_tag"] or "", each["size"])
            if len(page) < PAGE:
                return
            behind = page[-1]["path"]
            left = None if left is None else left - len(page)

    def _page(
        self, folder: str, under: str | None, behind: str | None, tries: int = _TRIES
    ) -> list[Any]:
        def read() -> list[Any]:
            found = self._obstore.list(self._objects, under, offset=behind, chunk_size=PAGE)
            return list(next(iter(found), []))

        try:
            return self._send("LIST", folder, read, tries)
        except _Missing:
            return []

    def folders(self, folder: str = "") -> list[str]:
        """The names of the folders in a folder. One request for every 1,000."""
        under = self._full(folder).rstrip("/") if folder else self.prefix

        def read() -> list[str]:
            found = self._obstore.list_with_delimiter(self._objects, under)
            return [each.rpartition("/")[2] for each in found["common_prefixes"]]

        try:
            return self._send("LIST", folder, read)
        except _Missing:
            return []

    def _write(self, key: str, body: bytes, metadata: Any, mode: Any) -> Contended:
        path = self._full(key)

        def write() -> str:
            done = self._obstore.put(
                self._objects,
                path,
                body,
                attributes={"Content-Type": "application/json", **(metadata or {})},
                mode=mode,
                use_multipart=False,
            )
            return str(done["e_tag"])

        try:
            return Contended(self._send("PUT", key, write), None)
        except _Missing:  # of a replacement; to write otherwise, only a bucket can be missing
            return Contended(None, None)
        except _Refused:
            found = self.get(key)
        # It may be one's own, of a request that got through without an answer: the HTTP client
        # sends a request again by itself, too, when a connection that was idle turns out closed.
        if found is not None and found.body == body:
            return Contended(found.etag, None)
        return Contended(None, found)

    def _full(self, key: str) -> str:
        full = f"{self._path}{key}"
        size = len(full.encode())
        if size > LONGEST_KEY:
            raise InvalidValueError(
                f"the key of an object would have {size} bytes, and S3 allows {LONGEST_KEY}: "
                f"{shown(key):.100}...; nothing was written",
                hint="Use shorter names: each byte of a character that is not ASCII takes three here.",
            )
        return full

    # -- requests ---------------------------------------------------------------------------------

    def _send(self, kind: str, key: str, request: Callable[[], T], tries: int = _TRIES) -> T:
        """Send a request until it is answered; its result."""
        pause = _FIRST_PAUSE
        deadline = time.monotonic() + _PATIENCE
        for number in range(1, tries + 1):
            with self._counting:
                self.requests[kind] += 1
            try:
                return request()
            except Exception as error:
                if isinstance(error, InvalidValueError):
                    raise
                trouble = self._trouble(error, key)
                last = number == tries or self._hurry or time.monotonic() >= deadline
                if last or not isinstance(trouble, ConnectionLostError):
                    raise trouble from None  # the driver's own repeats what the service said
                log.debug("%s %s: sent again: %s", kind, key, trouble.args[0])
            self._pause(pause * random.uniform(0.5, 1.0))  # noqa: S311 - many wait at once
            pause = min(pause * 2, _LONGEST_PAUSE)
        raise AssertionError("unreachable")

    def _trouble(self, error: Exception, key: str) -> Exception:
        """What to raise for an error of the driver. Nothing of what the service said is repeated."""
        said = str(error)
        status = _found(_STATUS, said)
        code = _found(_CODE, said)
        if code == "NoSuchBucket":
            return StoreOpenError(
                f"there is no bucket {self.name!r} at {self._where()}; nothing was written",
                hint="Create it first, or correct the URI, AWS_REGION and AWS_ENDPOINT_URL.",
            )
        if "169.254." in said or "/latest/api/token" in said:  # of the machine's role
            return StoreOpenError(
                f"there are no credentials for {self.uri}",
                hint=f"Set {_CREDENTIALS} in the environment.",
            )
        if code in _IDENTITY or status == "401":
            return StoreOpenError(
                f"{self._where()} does not accept the credentials for {self.uri} "
                f"({code or status}); nothing was written",
                hint=f"Check {_CREDENTIALS}, and AWS_REGION.",
            )
        match status:
            case "403":
                return DatabaseError(
                    f"{self.uri}: the credentials do not allow this request for {key!r} "
                    f"({code or status}); nothing was written",
                    hint="They need s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket.",
                )
            case "404":
                return _Missing()
            case "412":
                return _Refused()
            case _ if status in _AGAIN or code in _SLOW:
                return self._lost(f"it answers {status} {code or ''}".rstrip())
            case None if (
                "HTTP error" in said or "error sending" in said or "error decoding" in said
            ):
                return self._lost("it cannot be reached, or does not answer in time")
            case _:
                why = " ".join(filter(None, (status, code))) or type(error).__name__
                return DatabaseError(
                    f"{self.uri}: a request for {key!r} failed ({why})",
                    hint="A bucket in another region than AWS_REGION says fails like this."
                    if status in (None, "301", "400")
                    else None,
                )

    def _lost(self, why: str) -> ConnectionLostError:
        return ConnectionLostError(
            f"{self.uri} is unavailable at {self._where()}: {why}; a write that was under way may "
            f"have been done",
            hint="Do it again: each write is made once, however often it is sent.",
        )

    def _where(self) -> str:
        endpoint = next(filter(None, map(os.environ.get, _ENDPOINTS)), None)
        found = urlsplit(endpoint) if endpoint else None
        return "AWS S3" if found is None else f"{found.scheme}://{found.netloc.rpartition('@')[2]}"


class _Missing(Exception):
    """There is no such object."""


class _Refused(Exception):
    """The condition of a write does not hold."""


def parse(uri: str) -> tuple[str, str]:
    """The bucket and the prefix of `s3://bucket/prefix`; StoreOpenError if it is no such URI."""
    if not isinstance(uri, str):
        raise TypeError(f"the URI of a bucket is text, got {type(uri).__name__}")
    if not uri.lower().startswith("s3://"):
        scheme = uri.partition("://")[0] if "://" in uri else ""
        scheme = scheme if re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]{0,20}", scheme) else ""
        raise _bad_uri(f"{scheme}:// is not its scheme" if scheme else "it has no scheme")
    if not uri[5:].partition("/")[0]:
        raise _bad_uri("its name is missing")
    found = _URI.fullmatch(uri)
    if found is None or "@" in found[1]:
        raise _bad_uri("it has more than a bucket and a prefix")
    bucket, prefix = found[1], (found[2] or "").strip("/")
    if not _NAME.fullmatch(bucket):
        raise _bad_uri("the bucket's name is not one that S3 allows")
    if prefix and any(part in ("", ".", "..") for part in prefix.split("/")):
        raise _bad_uri("the prefix has an empty part, . or ..")
    if len(prefix.encode()) > LONGEST_KEY // 2:
        raise _bad_uri(f"the prefix has more than {LONGEST_KEY // 2} bytes")
    return bucket, prefix


def _bad_uri(why: str) -> OntologiaError:
    # It is not repeated: people put credentials into URIs.
    return StoreOpenError(
        f"this URI names no bucket: {why}",
        hint=f"s3://bucket/prefix; credentials come from {_CREDENTIALS}.",
    )


def _check_endpoint(endpoint: str, allow_http: bool) -> None:
    try:
        found = urlsplit(endpoint)
        well = found.scheme in ("http", "https") and bool(found.hostname) and found.port != 0
    except ValueError:
        well, found = False, None
    if found is None or not well or found.username is not None:
        raise StoreOpenError(
            "AWS_ENDPOINT_URL is no URL of a service",
            hint="https://host:port, without credentials.",
        )
    if found.scheme == "http" and not allow_http:
        raise StoreOpenError(
            f"AWS_ENDPOINT_URL names {found.netloc} without TLS, which is not allowed",
            hint="Use https://, or set AWS_ALLOW_HTTP=true where the network is trusted.",
        )


def _driver() -> Any:
    try:
        import obstore

        return obstore
    except ImportError as error:
        raise StoreOpenError(
            f"S3 needs the package obstore, which cannot be imported: {error}",
            hint="pip install 'ontologia[s3]'",
        ) from error


def _found(pattern: re.Pattern[str], text: str) -> str | None:
    found = pattern.search(text)
    return None if found is None else found[1]


def encoded(name: str) -> str:
    """A name as one part of a key: whatever is not a letter, a digit or one of `_.-~` as %XX."""
    if name in (".", ".."):
        return name.replace(".", "%2E")
    return quote(name, safe="")


def decoded(part: str) -> str:
    """The name that one part of a key stands for."""
    return unquote(part)
