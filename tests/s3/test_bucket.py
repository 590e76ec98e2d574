"""A bucket, on a real service that is made to fail."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from ontologia.errors import (
    ConnectionLostError,
    DatabaseError,
    InvalidValueError,
    OntologiaError,
    StoreOpenError,
)
from ontologia.store.s3.bucket import Bucket, decoded, encoded
from ontologia_conformance.seaweed import ACCESS_KEY, SECRET_KEY
from tests.s3.proxy import Proxy


@pytest.fixture
def pauses() -> list[float]:
    """How long a bucket would have waited between requests."""
    return []


@pytest.fixture
def bucket(s3_uri: str, proxy: Proxy, pauses: list[float]) -> Bucket:
    return Bucket(s3_uri, pause=pauses.append)


@pytest.mark.req("ONT-185")
def test_only_one_of_several_writers_creates_an_object(bucket: Bucket) -> None:
    with ThreadPoolExecutor(3) as threads:
        made = list(threads.map(lambda n: bucket.create("a/one", b"%d" % n), range(3)))

    [(winner, etag)] = [(n, etag) for n, etag in enumerate(made) if etag is not None]
    found = bucket.get("a/one")
    assert found is not None
    assert (found.body, found.etag) == (b"%d" % winner, etag)


@pytest.mark.req("ONT-185")
def test_only_what_was_read_is_replaced(bucket: Bucket) -> None:
    first = bucket.put("a/one", b"first")

    second = bucket.replace("a/one", b"second", first)

    assert second is not None
    assert bucket.replace("a/one", b"third", first) is None
    assert bucket.replace("a/none", b"first", first) is None
    found = bucket.get("a/one")
    assert found is not None
    assert (found.body, found.etag) == (b"second", second)
    assert bucket.get("a/none") is None


def test_metadata_comes_back_with_its_object(bucket: Bucket) -> None:
    bucket.create("a/one", b"1", {"source": "commit:12", "tenant": "%C3%BC"})

    found = bucket.get("a/one")

    assert found is not None
    assert found.metadata == {"source": "commit:12", "tenant": "%C3%BC"}


@pytest.mark.req("ONT-184")
def test_a_listing_has_the_keys_of_one_folder_in_their_order(bucket: Bucket) -> None:
    for key in ("b/2", "b/1", "b/3", "bb/1", "c/1", "b%2Fc/1"):
        bucket.put(key, b"x")

    assert [each.key for each in bucket.listing("b")] == ["b/1", "b/2", "b/3"]
    assert [each.key for each in bucket.listing("b", after="b/1", limit=1)] == ["b/2"]
    assert list(bucket.listing("none")) == []
    assert sorted(bucket.folders()) == ["b", "b%2Fc", "bb", "c"]
    bucket.delete("b/1", "b/2", "not there")
    assert [each.key for each in bucket.listing("b")] == ["b/3"]


@pytest.mark.thorough
def test_a_long_listing_costs_a_request_for_each_thousand(bucket: Bucket, proxy: Proxy) -> None:
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda n: bucket.put(f"l/{n:05}", b""), range(2_100)))
    proxy.seen.clear()
    bucket.requests.clear()

    assert len(list(bucket.listing("l"))) == 2_100
    assert (proxy.kinds(), bucket.requests) == (["LIST"] * 3, {"LIST": 3})
    assert len(list(bucket.listing("l", limit=10))) == 10
    assert len(proxy.seen) == 4


@pytest.mark.parametrize(
    "name",
    [
        *("plain", "a/b", "..", "é"),
        *(
            pytest.param(each, marks=pytest.mark.thorough)
            for each in (".", "a b", "%2F", "a\\b", "~-_.", "x" * 200, "?#&")
        ),
    ],
)
def test_any_name_is_one_part_of_a_key(bucket: Bucket, name: str) -> None:
    key = f"{encoded(name)}/events/{encoded(name)}.json"

    bucket.put(key, b"1")

    assert [decoded(each) for each in bucket.folders()] == [name]
    [listed] = bucket.listing(f"{encoded(name)}/events")
    assert listed.key == key
    assert decoded(listed.key.partition("/")[0]) == name


def test_a_key_past_what_s3_allows_is_refused_before_it_is_sent(
    bucket: Bucket, proxy: Proxy
) -> None:
    with pytest.raises(InvalidValueError, match="1024"):
        bucket.put(encoded("ü" * 200) + "/" + "k" * 200, b"1")

    assert proxy.seen == []


# -- a service that fails -------------------------------------------------------------------------


@pytest.mark.parametrize("status", [500, 503, 409])
def test_a_service_that_is_busy_is_asked_again_with_longer_pauses(
    bucket: Bucket, proxy: Proxy, pauses: list[float], status: int
) -> None:
    proxy.fail("PUT", status=status, times=3)

    assert bucket.create("a/one", b"1") is not None

    assert len(proxy.seen) == 4
    assert bucket.requests == {"PUT": 4}
    assert 0.05 <= pauses[0] <= 0.1 < pauses[2] <= 0.4


def test_a_service_that_stays_busy_is_given_up(
    bucket: Bucket, proxy: Proxy, pauses: list[float]
) -> None:
    proxy.fail("LIST", status=503, times=100)

    with pytest.raises(ConnectionLostError, match="503 SlowDown"):
        list(bucket.listing("a"))

    assert len(proxy.seen) == 6
    assert sum(pauses) < 6


@pytest.mark.parametrize("how", [{"status": 503}, {"silent": True}])
def test_a_write_that_was_done_without_an_answer_is_ones_own(
    bucket: Bucket, proxy: Proxy, how: dict[str, object]
) -> None:
    proxy.fail("PUT", "/one", done=True, **how)
    created = bucket.create("a/one", b"first")
    found = bucket.get("a/one")
    assert found is not None
    assert created == found.etag

    proxy.fail("PUT", "/one", done=True, **how)
    replaced = bucket.replace("a/one", b"second", found.etag)
    found = bucket.get("a/one")
    assert found is not None
    assert (replaced, found.body) == (found.etag, b"second")


@pytest.mark.req("ONT-185")
def test_a_write_that_another_won_meanwhile_is_not_ones_own(
    bucket: Bucket, proxy: Proxy, s3_uri: str
) -> None:
    other = Bucket(s3_uri)
    proxy.fail("PUT", "/one", status=503, first=lambda: other.create("a/one", b"other"))

    assert bucket.create("a/one", b"mine") is None
    found = bucket.get("a/one")
    assert found is not None
    assert found.body == b"other"


def test_a_service_that_is_not_there_is_unavailable(
    s3_uri: str, monkeypatch: pytest.MonkeyPatch, pauses: list[float]
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")

    with pytest.raises(ConnectionLostError, match=r"http://127\.0\.0\.1:1: it cannot be reached"):
        Bucket(s3_uri, pause=pauses.append).get("a")

    assert len(pauses) == 5


# -- what cannot be opened ------------------------------------------------------------------------


def test_wrong_credentials_are_told_at_once_and_not_repeated(
    s3_uri: str, monkeypatch: pytest.MonkeyPatch, pauses: list[float]
) -> None:
    for name, value in (
        ("AWS_SECRET_ACCESS_KEY", "very-secret-value"),
        ("AWS_ACCESS_KEY_ID", "AKIASOMEBODY"),
    ):
        monkeypatch.setenv(name, value)
        for request in (
            lambda: Bucket(s3_uri, pause=pauses.append).get("a"),
            lambda: Bucket(s3_uri, pause=pauses.append).put("a", b""),
            lambda: list(Bucket(s3_uri, pause=pauses.append).listing("a")),
            lambda: Bucket(s3_uri, pause=pauses.append).delete("a"),
        ):
            with pytest.raises(StoreOpenError, match="does not accept the credentials") as caught:
                request()
            told = f"{caught.value}{caught.value.__cause__}"
            for secret in ("very-secret-value", "AKIASOMEBODY", ACCESS_KEY, SECRET_KEY):
                assert secret not in told
    assert pauses == []


def test_no_credentials_are_told_with_the_names_of_the_variables(
    s3_uri: str, monkeypatch: pytest.MonkeyPatch, pauses: list[float]
) -> None:
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1")

    with pytest.raises(StoreOpenError, match="no credentials") as caught:
        Bucket(s3_uri, pause=pauses.append).get("a")

    assert "AWS_ACCESS_KEY_ID" in str(caught.value.hint)


def test_a_bucket_that_does_not_exist_is_named(s3_uri: str) -> None:
    bucket = Bucket("s3://no-such-bucket/events")

    with pytest.raises(StoreOpenError, match="no bucket 'no-such-bucket'"):
        bucket.get("a")
    with pytest.raises(StoreOpenError, match="no bucket 'no-such-bucket'"):
        list(bucket.listing("a"))


@pytest.mark.parametrize(
    "uri",
    [
        *("gs://bucket/p", "bucket/p", "", "s3:/bucket", "s3://", "s3://b", "s3://bucket/a//b"),
        *("s3://bucket/../x", "s3://key:secret@bucket/p", "s3://bucket/p?secret=1", "s3://a_b!/x"),
    ],
)
def test_a_uri_that_names_no_bucket_is_refused_without_being_repeated(uri: str) -> None:
    with pytest.raises(StoreOpenError, match="names no bucket") as caught:
        Bucket(uri)

    assert "secret" not in caught.value.args[0]


@pytest.mark.parametrize(
    "endpoint", ["nonsense", "ftp://x", "http://", "https://key:secret@host", "http://host"]
)
def test_an_endpoint_that_cannot_be_used_is_told(
    s3_uri: str, monkeypatch: pytest.MonkeyPatch, endpoint: str
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.delenv("AWS_ALLOW_HTTP")

    with pytest.raises(StoreOpenError, match="AWS_ENDPOINT_URL") as caught:
        Bucket(s3_uri)

    assert "secret" not in str(caught.value)


def test_without_the_extra_its_name_is_told(s3_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)

    with pytest.raises(StoreOpenError) as caught:
        Bucket(s3_uri)

    assert caught.value.hint == "pip install 'ontologia[s3]'"


def test_a_refusal_is_an_error_of_ours(bucket: Bucket, proxy: Proxy) -> None:
    proxy.fail("PUT", status=403, times=1)
    with pytest.raises(DatabaseError, match="do not allow"):
        bucket.put("a", b"")
    proxy.fail("GET", status=400, times=1)
    with pytest.raises(OntologiaError, match="400"):
        bucket.get("a")
