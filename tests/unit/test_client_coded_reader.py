"""Reading blobs that are cut into fragments of a code, from nodes that fail or lie."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sdrs_core.codes import Code
from sdrs_core.errors import CorruptDataError, SdrsError, UnavailableError
from tests.support.coded_nodes import BLOCK, FOUR_TWO, STRIPES, CodedNodes, nodes_of, quick_reading
from tests.support.waiting import wait_for


@pytest.fixture(autouse=True, scope="module")
def quick() -> Iterator[None]:
    with quick_reading():
        yield


def test_what_is_well_is_read_from_the_data_fragments_alone() -> None:
    nodes = nodes_of(STRIPES)
    assert nodes.read() == nodes.content
    assert nodes.asked_names == set("abcd")
    assert nodes.reported == []


@pytest.mark.parametrize("kind", ["down", "missing", "dies", "cut", "flip", "footer", "foreign", "hangs", "stalls"])
@pytest.mark.parametrize("names", ["a", "d", "ab", "cd", "ad", "ae", "ef"])
def test_any_two_fragments_may_be_lost(kind: str, names: str) -> None:
    nodes = nodes_of(STRIPES)
    for name in names:
        nodes.trouble(name, kind, block=2)
    assert nodes.read() == nodes.content
    if kind in ("missing", "cut", "flip", "footer", "foreign"):
        found = {name for name in names if name in nodes.asked_names}
        wait_for(lambda: {report.node_id for report in nodes.reported} == found, "the reports")
        assert all(report.blob_id == nodes.blob.id for report in nodes.reported)


def test_a_node_that_is_down_is_not_asked_while_others_are_enough() -> None:
    nodes = nodes_of(STRIPES, down="ac")
    assert nodes.read() == nodes.content
    assert nodes.asked_names == set("bdef")


def test_a_fragment_that_is_being_dropped_is_not_asked_for() -> None:
    """P14."""
    nodes = nodes_of(STRIPES)
    record = nodes.record()
    record.shards[0].blobs[0].holders[1].dropping = True
    nodes.record = lambda: record  # type: ignore[method-assign]
    assert nodes.read() == nodes.content
    assert "b" not in nodes.asked_names


@pytest.mark.parametrize(
    ("kinds", "error"),
    [
        (["missing", "footer", "missing"], CorruptDataError),
        (["flip", "flip", "flip"], CorruptDataError),
        (["down", "down", "down"], UnavailableError),
        (["missing", "flip", "down"], UnavailableError),
    ],
)
def test_with_three_lost_the_error_names_them_and_what_may_return_is_not_lost(
    kinds: list[str], error: type[SdrsError]
) -> None:
    nodes = nodes_of(STRIPES)
    for name, kind in zip("acf", kinds, strict=True):
        nodes.trouble(name, kind)
    with pytest.raises(error) as caught:
        nodes.read()
    assert "j step 7, rank 0" in str(caught.value)
    if error is CorruptDataError:
        for name in "acf":
            assert f"of blob {nodes.blob.id} on node {name}" in str(caught.value)
        # Who catches it finds the checkpoint marked: all were told before.
        assert {report.node_id for report in nodes.reported} == set("acf")


def test_bad_blocks_in_all_fragments_are_read_around_while_each_stripe_has_enough_good_ones() -> None:
    nodes = nodes_of(STRIPES)
    for block, name in enumerate("abcdef"):
        nodes.trouble(name, "flip", block % 5)
    assert nodes.read() == nodes.content
    wait_for(lambda: {report.node_id for report in nodes.reported} >= set("abcd"), "the reports")


def test_a_fragment_with_a_bad_block_is_not_used_again_while_others_are_enough() -> None:
    nodes = nodes_of(8 * 4 * BLOCK)
    nodes.trouble("b", "flip", 2)
    assert nodes.read() == nodes.content
    assert [name for name, _, _ in nodes.opened].count("b") == 1
    assert [name for name, _, _ in nodes.opened if name in "ef"]


def test_wrong_parity_is_found_by_the_blobs_own_checksums_and_another_one_serves() -> None:
    """P9: a bit that flipped before the encoding makes parity that matches its own checksums."""
    nodes = nodes_of(STRIPES)
    nodes.trouble("b", "down")
    nodes.make_parity_wrong("e", 3)
    for _ in range(2):  # parity fragments take turns
        assert nodes.read() == nodes.content
    wait_for(lambda: nodes.reported, "the report")
    assert {report.node_id for report in nodes.reported} == {"e"}


def test_wrong_parity_without_another_is_an_error_and_never_an_answer() -> None:
    nodes = nodes_of(STRIPES)
    nodes.trouble("a", "missing")
    nodes.trouble("f", "missing")
    nodes.make_parity_wrong("e", 3)
    with pytest.raises(CorruptDataError, match="not the parity of the blob"):
        nodes.read()


def test_of_several_parity_fragments_the_one_that_is_wrong_is_named() -> None:
    nodes = nodes_of(7 * 3 * BLOCK + 5, Code(3, 3))
    nodes.trouble("a", "missing")
    nodes.trouble("c", "missing")
    nodes.make_parity_wrong("e", 4)
    for _ in range(3):
        assert nodes.read() == nodes.content
    wait_for(lambda: {report.node_id for report in nodes.reported} >= {"e"}, "the report")
    assert {report.node_id for report in nodes.reported} == set("ace")


def test_a_node_may_hold_several_fragments_and_another_the_same() -> None:
    """P10, and copies that repair has made meanwhile."""
    nodes = nodes_of(STRIPES)
    nodes.fragments["a", 4] = nodes.fragments.pop(("e", 4))
    nodes.fragments["b", 5] = nodes.fragments.pop(("f", 5))
    nodes.trouble("a", "down")
    assert nodes.read() == nodes.content
    nodes.trouble("c", "down")
    with pytest.raises(UnavailableError):
        nodes.read()
    nodes.fragments["g", 2] = CodedNodes(nodes.content, FOUR_TWO).fragments["c", 2]
    assert nodes.read() == nodes.content


# Everything at once

KINDS = ["down", "missing", "dies", "cut", "flip", "footer", "foreign", "wrong"]
# Which of these leave the fragment's other blocks usable.
OF_ONE_BLOCK = ("flip", "wrong")


@st.composite
def cases(draw: st.DrawFn) -> tuple[Code | None, int, dict[int, tuple[str, int]]]:
    code = draw(st.one_of(st.none(), st.builds(Code, st.integers(1, 5), st.integers(1, 4))))
    data = code.data if code else 1
    whole, rest = draw(st.integers(0, 4)), draw(st.integers(0, data * BLOCK))
    size_bytes = max(1, whole * data * BLOCK + rest)
    total = code.total if code else 3
    lost = draw(st.lists(st.integers(0, total - 1), unique=True, max_size=(code.parity if code else 2) + 2))
    troubles = {index: (draw(st.sampled_from(KINDS)), draw(st.integers(0, whole))) for index in lost}
    return code, size_bytes, troubles


@settings(max_examples=300, deadline=None)
@given(cases(), st.sampled_from([BLOCK, 6 * BLOCK, 64 * BLOCK]))
def test_what_comes_back_is_right_or_an_error(
    case: tuple[Code | None, int, dict[int, tuple[str, int]]], range_bytes: int
) -> None:
    code, size_bytes, troubles = case
    nodes = nodes_of(size_bytes, code, copies=3)
    for index, (kind, block) in troubles.items():
        name = chr(ord("a") + index)
        if kind != "wrong":
            nodes.trouble(name, kind, block)
        elif code and index >= code.data and block * BLOCK < code.fragment_bytes(size_bytes, index):
            nodes.make_parity_wrong(name, block)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sdrs.restore.stripes.RANGE_BYTES", range_bytes)
        try:
            read = nodes.read()
        except (CorruptDataError, UnavailableError):
            assert not is_easy(code, size_bytes, troubles), "each stripe had enough good blocks"
        else:
            assert read == nodes.content


def is_easy(code: Code | None, size_bytes: int, troubles: dict[int, tuple[str, int]]) -> bool:
    """Whether it can be read although everything that is troubled fails for good."""
    shape = code or Code(1, 0)
    for stripe in range(shape.stripe_count(size_bytes)):
        absent = sum(not shape.block_bytes(size_bytes, stripe, index) for index in range(shape.data))
        bad = sum(
            kind not in OF_ONE_BLOCK or block == stripe
            for index, (kind, block) in troubles.items()
            if not code or shape.block_bytes(size_bytes, stripe, index)
        )
        present = (shape.total if code else 3) - absent
        if present - bad < shape.data - absent:
            return False
    return True
