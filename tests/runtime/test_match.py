"""Which calls belong together, which are not met, and which do not fit."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.runtime.calls import ANYONE, Call
from labkit.runtime.match import Matcher, crossed, difference, first_clash
from labkit.trace.events import Group

ALL = Group("0", "default", (0, 1, 2))
NUMBERS = itertools.count()


def entered(rank: int, seq: int = 0, name: str = "all_reduce", **fields: Any) -> Call:
    given: dict[str, Any] = {
        "group": ALL, "peer": -1, "tag": -1, "elements": 8, "bytes": 32, "dtype": "float32",
        "reduction": "SUM" if "reduce" in name else None, "where": "a.py:1",
    }  # fmt: skip
    call = {"rank": rank, "op": next(NUMBERS), "kind": "collective", "name": name, "seq": seq}
    return Call(**call, **(given | fields))


def message(kind: str, rank: int, peer: int, seq: int = 0, **fields: Any) -> Call:
    return entered(rank, seq, kind, **{"peer": peer, "tag": 0} | fields)._replace(kind=kind)


def matched(*calls: Call) -> Matcher:
    matcher = Matcher()
    matcher.take(calls)
    return matcher


# What fits


@pytest.mark.parametrize(
    ("a", "b", "what"),
    [
        (entered(0), entered(1, where="b.py:2"), None),
        (entered(0), entered(1, name="broadcast"), "kind"),
        (entered(0), entered(1, name="barrier", elements=0, dtype=None), "kind"),
        (entered(0), entered(1, reduction="MAX"), "reduction"),
        (entered(0), entered(1, dtype="float64", bytes=64), "dtype"),
        (entered(0), entered(1, elements=9), "size"),
        (entered(0, name="broadcast", peer=0), entered(1, name="broadcast", peer=1), "root"),
        (entered(0, name="broadcast"), entered(1, name="broadcast", elements=4), "size"),
        (entered(0, name="reduce_scatter"), entered(1, name="reduce_scatter", elements=4), "size"),
        (entered(0, name="all_to_all"), entered(1, name="all_to_all", elements=3), None),
        (entered(0, name="gather"), entered(1, name="gather", elements=3), None),
        (entered(0, name="scatter"), entered(1, name="scatter", elements=24), None),
        (entered(0, name="scatter", dtype=None), entered(1, name="scatter"), None),
        (entered(0, name="all_gather"), entered(1, name="all_gather", elements=3), None),
        (
            entered(0, name="all_gather", whole=11),
            entered(1, name="all_gather", elements=3, whole=11),
            None,
        ),
        (entered(0, name="all_gather", whole=24), entered(1, name="all_gather", whole=9), "size"),
        (message("send", 0, 1), message("recv", 1, 0), None),
        (message("send", 0, 1), message("recv", 1, 0, bytes=48, elements=12), "size"),
        (message("send", 0, 1), message("recv", 1, 0, bytes=16, elements=4), "size"),
        (message("send", 0, 1), message("recv", 1, 0, dtype="int32"), "dtype"),
    ],
)
def test_a_pair_of_calls_that_met(a: Call, b: Call, what: str | None) -> None:
    assert difference(a, b) == difference(b, a) == what


# Two collectives in a different order


def lines(*by_rank: str) -> list[Call]:
    """Collectives of equal size: each rank's lines, one letter a collective."""
    return [
        entered(rank, seq, where=f"{line}:1")
        for rank, its in enumerate(by_rank)
        for seq, line in enumerate(its)
    ]


@pytest.mark.parametrize(
    "by_rank", [("AB", "BA", "AB"), ("AB", "BA", "BA"), ("CACB", "CBCA", "CACB")]
)
def test_a_swap_of_two_is_found(by_rank: tuple[str, ...]) -> None:
    clash = first_clash(lines(*by_rank))
    assert clash is not None
    assert clash.what == "order"
    first, second, other, last = clash.calls
    assert (first.where, second.where) == (last.where, other.where) == ("A:1", "B:1")
    assert (first.rank, other.rank) == (second.rank, last.rank)
    assert (first.seq, second.seq) == (other.seq, last.seq)


@pytest.mark.parametrize(
    "by_rank",
    [
        ("AAAA", "AAAA", "AAAA"),  # a loop
        ("AB", "AB", "AB"),
        ("AA", "BB", "BB"),  # each branch has its line
        ("AC", "BC", "BC"),
        ("ABB", "BAB", "BBA"),  # a role that goes round
        ("AB", "BC", "AB"),
        ("A" + "C" * 20 + "B", "B" + "C" * 20 + "A", "A" + "C" * 20 + "B"),  # far apart
    ],
)
def test_different_lines_alone_are_no_swap(by_rank: tuple[str, ...]) -> None:
    assert first_clash(lines(*by_rank)) is None


def test_a_swap_of_unlike_collectives_is_none() -> None:
    """One rank's line A is another's in another turn: a broadcast from each rank by turns."""
    calls = [
        entered(rank, seq, "broadcast", peer=seq, where="mine:1" if rank == seq else "theirs:1")
        for rank in range(3)
        for seq in range(3)
    ]
    pair = [c._replace(group=Group("0", "default", (0, 1))) for c in calls if c.rank < 2]
    assert first_clash(calls) is None
    assert first_clash([c for c in pair if c.seq < 2]) is None


def test_barriers_mix_nothing() -> None:
    first = {r: entered(r, 0, "barrier", elements=0, where="AB"[r]) for r in (0, 1)}
    second = {r: entered(r, 1, "barrier", elements=0, where="BA"[r]) for r in (0, 1)}
    assert crossed(first, second) is None


@given(st.randoms(), st.lists(st.sampled_from("ABC"), min_size=1, max_size=12), st.booleans())
def test_the_order_in_which_pages_are_read_does_not_matter(
    random: Any, program: list[str], wrong: bool
) -> None:
    """Ranks with one program fit, and one with another reduction is found, however interleaved."""
    its = lines(*["".join(program)] * 3)
    by_rank = [[c for c in its if c.rank == r] for r in range(3)]
    if wrong:
        by_rank[1][-1] = by_rank[1][-1]._replace(reduction="MAX")
    matcher = Matcher()
    while any(by_rank):
        calls = random.choice([calls for calls in by_rank if calls])
        matcher.take([calls.pop(0)])
    assert (matcher.clash is not None) == wrong


# Who has not come yet


def test_a_collective_waits_for_those_that_have_not_entered_it() -> None:
    matcher = matched(entered(0, 0), entered(0, 1), entered(1, 0))
    assert matcher.missing(entered(0, 0)) == {2}
    assert matcher.missing(entered(0, 1)) == {1, 2}
    matcher.take([entered(2, 0), entered(2, 1), entered(1, 1)])
    assert matcher.missing(entered(0, 1)) == frozenset()


def test_groups_are_counted_apart_also_those_of_one_name() -> None:
    pair = Group("0", "default", (0, 1))
    matcher = matched(entered(0, group=pair), entered(1))
    assert matcher.missing(entered(0, group=pair)) == {1}
    assert matcher.missing(entered(1)) == {0, 2}


def test_a_message_waits_for_its_other_end_of_the_same_tag_and_number() -> None:
    matcher = matched(message("send", 0, 1), message("recv", 1, 0, tag=7))
    assert matcher.missing(message("send", 0, 1)) == {1}
    assert matcher.missing(message("recv", 1, 0, tag=7)) == {0}
    matcher.take([message("recv", 1, 0)])
    assert matcher.missing(message("send", 0, 1)) == frozenset()
    assert matcher.missing(message("send", 0, 1, seq=1)) == {1}
    assert matcher.missing(message("recv", 1, 0, seq=1)) == {0}


def test_a_receive_from_anyone_waits_for_all_others() -> None:
    anyone = message("recv", 0, ANYONE, seq=-1)
    matcher = matched(anyone)
    assert matcher.missing(anyone) == {1, 2}
    matcher.take([message("send", 2, 0)])
    assert matcher.missing(anyone) == frozenset()
    assert matcher.missing(message("send", 2, 0)) == frozenset()
    matcher.take([anyone._replace(peer=2, seq=0)])  # it has turned out whose it was
    assert matcher.clash is None
    assert matcher.missing(message("send", 2, 0, seq=1)) == {0}


def test_a_receive_from_anyone_must_fit_the_message_that_it_took() -> None:
    anyone = message("recv", 0, ANYONE, seq=-1, bytes=4)
    clash = first_clash([anyone, message("send", 2, 0), anyone._replace(peer=2, seq=0)])
    assert clash is not None
    assert [c.kind for c in clash.calls] == ["send", "recv"]
    assert clash.what == "size"


def test_a_call_that_was_refused_was_never_posted() -> None:
    refused = entered(1, name="broadcast", peer=1)
    matcher = matched(entered(0), refused, refused._replace(kind="refused"), entered(1))
    assert matcher.clash is None
    assert matcher.missing(entered(0)) == {2}
    send = message("send", 0, 1, bytes=4)
    matcher.take([send, send._replace(kind="refused")])
    assert matcher.missing(message("recv", 1, 0)) == {0}
    matcher.take([message("recv", 1, 0), message("send", 0, 1)])
    assert matcher.clash is None


def test_a_message_that_was_dropped_is_not_met() -> None:
    send, recv = message("send", 0, 1), message("recv", 1, 0)
    matcher = matched(send, recv)
    assert not matcher.withdrawn(recv)
    matcher.take([send._replace(kind="dropped")])
    assert matcher.withdrawn(recv)
    assert matcher.missing(recv) == {0}
    assert matcher.missing(send) == frozenset()


def test_calls_that_met_are_forgotten() -> None:
    matcher = Matcher()
    for seq in range(1000):
        matcher.take([entered(r, seq) for r in range(3)])
        matcher.take([message("send", 0, 1, seq), message("recv", 1, 0, seq)])
    assert not matcher._half
    assert not matcher._messages
