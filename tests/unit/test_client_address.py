from __future__ import annotations

import pytest

from sdrs.address import (
    DEFAULT_URL,
    cluster_url,
    parse_checkpoint_url,
    parse_job_url,
    parse_url,
    split_address,
    split_url,
)
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


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("sdrs://h1:1,h2:2/job/7", ("sdrs://h1:1,h2:2", "job", 7)),
        ("sdrs://[::1]:1/job/0/", ("sdrs://[::1]:1", "job", 0)),
        ("sdrs:///job", (None, "job", None)),
    ],
)
def test_a_url_names_a_cluster_a_job_and_perhaps_a_step(url: str, found: tuple[str | None, str, int | None]) -> None:
    assert parse_job_url(url) == found
    if found[2] is None:
        with pytest.raises(InvalidArgumentError, match=f"names no step of its job: use {url}/STEP"):
            parse_checkpoint_url(url)
    else:
        assert parse_checkpoint_url(url) == found


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("job", "does not start with sdrs://"),
        ("sdrs://h:1", "a job, or a job and a step"),
        ("sdrs://h:1/job/7/file", "a job, or a job and a step"),
        ("sdrs://h:1/job/x", "the step 'x' is not a whole number"),
        ("sdrs://h:1/job/\u0663", "is not a whole number"),
        ("sdrs://h:x/job/7", "'h:x' is not host:port"),
        ("sdrs://h:1/bad name/7", "bad name"),
    ],
)
def test_a_url_that_names_no_job_is_refused_by_all_who_take_one(url: str, what: str) -> None:
    for parse in (parse_job_url, parse_checkpoint_url):
        with pytest.raises(InvalidArgumentError) as caught:
            parse(url)
        assert what in str(caught.value)


def test_a_url_is_split_into_hosts_and_path() -> None:
    assert split_url("sdrs://h1:1,h2:2/job/1/a") == ("h1:1,h2:2", "job/1/a")
    assert split_url("sdrs:///job/1/") == ("", "job/1")
    assert split_url("/job/1") == ("", "job/1")
