"""Logs that grow and are set aside while somebody reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from sdrs_scheduler.cli.log_files import Follower, last_lines, lines


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "node-1.log"
    path.write_text("5\n6\n")
    (tmp_path / "node-1.log.1").write_text("3\n4\n")
    (tmp_path / "node-1.log.2").write_text("1\n2\n")
    return path


def test_all_files_of_a_log_are_read_in_order(log: Path) -> None:
    assert list(lines(log)) == ["1", "2", "3", "4", "5", "6"]
    assert list(lines(log, end=2)) == ["1", "2", "3", "4", "5"]


@pytest.mark.parametrize("count", range(8))
def test_the_last_lines_reach_into_older_files(log: Path, count: int) -> None:
    assert last_lines(log, count) == ["1", "2", "3", "4", "5", "6"][max(0, 6 - count) :]


def test_the_last_lines_of_a_long_log(tmp_path: Path) -> None:
    path = tmp_path / "node-1.log"
    path.write_text("".join(f"line {number} {'x' * 100}\n" for number in range(20_000)))
    assert [line.split()[1] for line in last_lines(path, 3000)] == [str(number) for number in range(17_000, 20_000)]
    path.write_bytes(b"\xff\xfe broken\nno end")
    assert last_lines(path, 5) == ["\ufffd\ufffd broken", "no end"]
    assert last_lines(tmp_path / "none.log", 5) == []


def test_a_follower_sees_each_line_once_also_over_a_rotation(tmp_path: Path) -> None:
    path = tmp_path / "node-1.log"
    path.write_text("old\nhal")
    follower = Follower(path)
    assert list(lines(path, follower.seen_bytes)) == ["old"]
    with open(path, "a") as file:
        file.write("f\nnext\nunfinished")
        file.flush()
        assert follower.new_lines() == ["half", "next"]
        assert follower.new_lines() == []
        file.write(" line\nlast of it\n")
    path.rename(tmp_path / "node-1.log.1")
    assert follower.new_lines() == ["unfinished line", "last of it"]
    path.write_text("new\nend")
    assert follower.new_lines() == ["new"]
    assert follower.remainder() == ["end"]
    assert follower.remainder() == []
    follower.close()


def test_a_follower_waits_for_a_log_that_is_not_there_yet(tmp_path: Path) -> None:
    path = tmp_path / "node-1.log"
    follower = Follower(path)
    assert follower.new_lines() == []
    path.write_text("a\n")
    assert follower.new_lines() == ["a"]
    follower.close()
