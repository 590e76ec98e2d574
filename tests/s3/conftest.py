"""A way to the S3 server of the tests on which requests can fail."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.s3.proxy import Proxy


@pytest.fixture
def proxy(
    s3_uri: str, s3_server: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Proxy]:
    """What is opened from now on reaches the server through it."""
    with Proxy(s3_server) as proxy:
        for name, value in proxy.environment.items():
            monkeypatch.setenv(name, value)
        yield proxy
