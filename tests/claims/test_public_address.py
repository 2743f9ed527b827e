"""Which addresses are of the public internet, and what a name has."""

from __future__ import annotations

import pytest

from mechassay.claims.public_address import addresses_of, is_proxied, is_public


@pytest.mark.parametrize("address", ["8.8.8.8", "2001:4860:4860::8888", "::ffff:8.8.8.8"])
def test_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.8.9.1",
        "0.0.0.0",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "100.64.0.1",
        "169.254.169.254",
        "224.0.0.1",
        "239.255.255.250",
        "255.255.255.255",
        "::",
        "::1",
        "fe80::1",
        "fe80::1%eth0",
        "fc00::1",
        "ff02::1",
        # IPv6 addresses that stand for IPv4 ones.
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "2002:7f00:1::1",
        "64:ff9b::7f00:1",
    ],
)
def test_not_public(address: str) -> None:
    assert not is_public(address)


def test_addresses_are_looked_up_without_repeats() -> None:
    assert "127.0.0.1" in addresses_of("localhost", 80)
    assert addresses_of("127.0.0.1", 80) == ["127.0.0.1"]
    assert addresses_of("2130706433", 80) == ["127.0.0.1"]
    with pytest.raises(OSError, match=r"\w"):
        addresses_of("no-such-host.invalid", 80)


def test_proxies_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    assert not is_proxied("https", "a.org")
    monkeypatch.setenv("https_proxy", "http://proxy:1")
    monkeypatch.setenv("no_proxy", "b.org")
    assert is_proxied("https", "a.org") and not is_proxied("http", "a.org")
    assert not is_proxied("https", "b.org")
    monkeypatch.setenv("all_proxy", "http://proxy:1")
    assert is_proxied("http", "a.org")
