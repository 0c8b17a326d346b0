from __future__ import annotations

import pytest

from sdrs.address import DEFAULT_URL, cluster_url, parse_url, split_address
from sdrs.errors import InvalidArgumentError


@pytest.mark.parametrize(
    ("url", "addresses"),
    [
        ("sdrs://127.0.0.1:7070", ("127.0.0.1:7070",)),
        ("sdrs://a.example:1,b:65535", ("a.example:1", "b:65535")),
        ("sdrs://host", ("host:7070",)),
        ("sdrs://[::1]:7071/", ("[::1]:7071",)),
    ],
)
def test_addresses_are_read_in_order(url: str, addresses: tuple[str, ...]) -> None:
    assert parse_url(url) == addresses


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("http://host:1", "does not start with sdrs://"),
        ("host:7070", "does not start with sdrs://"),
        ("sdrs://", "a host is missing"),
        ("sdrs://a:1,", "a host is missing"),
        ("sdrs://a:x", "'a:x' is not host:port"),
        ("sdrs://a:0", "port 0 does not exist"),
        ("sdrs://a:70000", "port 70000 does not exist"),
        ("sdrs://a b:1", "is not host:port"),
        ("sdrs://user@a:1", "is not host:port"),
        ("sdrs://a:1/job/3", "it has a path"),
    ],
)
def test_a_malformed_url_is_refused_with_what_is_wrong_and_how_it_should_be(url: str, what: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        parse_url(url)
    assert what in str(caught.value)
    assert "sdrs://host:port" in str(caught.value)


def test_the_url_comes_from_the_caller_then_the_environment_then_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDRS_URL", "sdrs://from-environment:1")
    assert cluster_url("sdrs://given:1") == "sdrs://given:1"
    assert cluster_url(None) == "sdrs://from-environment:1"
    monkeypatch.delenv("SDRS_URL")
    assert cluster_url(None) == DEFAULT_URL


def test_brackets_are_taken_off_for_sockets() -> None:
    assert split_address("[::1]:80") == ("::1", 80)
    assert split_address("10.0.0.1:80") == ("10.0.0.1", 80)
