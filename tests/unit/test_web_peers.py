"""Whose connections to a server are counted together."""

from __future__ import annotations

import pytest

from ontologia.web.connection import peer_of


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("2001:db8:0:1::1", "2001:db8:0:1:ffff:ffff:ffff:ffff"),
        ("fe80::1%eth0", "fe80::2%eth0"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
    ],
)
def test_the_addresses_of_one_machine_are_one_peer(one, other):
    assert peer_of(one) == peer_of(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("192.0.2.1", "192.0.2.2"),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2"),
        ("2001:db8:0:1::1", "2001:db8:0:2::1"),
    ],
)
def test_the_addresses_of_others_are_not(one, other):
    assert peer_of(one) != peer_of(other)
