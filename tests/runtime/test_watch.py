"""Hangs are told, by who waits for whom; what only takes long is left alone; calls must fit."""

from __future__ import annotations

import itertools
import os
import subprocess
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import labkit
from labkit.runtime.calls import Call
from labkit.runtime.match import Matcher
from labkit.runtime.watch import stuck
from labkit.trace.events import Group

pytestmark = pytest.mark.usefixtures("no_process_left")

SHORT = 0.3  # patience of most of these runs
LONG = 0.8  # seconds that something takes, more than twice that
X = 8  # elements


def go(fn: Callable[..., Any], ranks: int = 3, **options: Any) -> labkit.Run:
    given = {"threads": 1, "seed": 0, "backend": "gloo", "timeout": 30} | options
    return labkit.launch(fn, ranks=ranks, **given)


def hangs(
    fn: Callable[..., Any], ranks: int = 3, patience: float = SHORT, **options: Any
) -> labkit.Deadlock:
    with pytest.raises(labkit.Deadlock) as caught:
        go(fn, ranks, patience=patience, **options)
    assert caught.value.run is not None
    assert caught.value.run.seconds is not None
    assert caught.value.run.seconds <= 5
    return caught.value


def line_of(fn: Callable[..., Any], words: str) -> str:
    """ "file:line" of the line of `fn` that ends with a comment of these words."""
    import inspect

    source, first = inspect.getsourcelines(fn)
    (found,) = [i for i, text in enumerate(source) if text.rstrip().endswith(f"# {words}")]
    return f"{__file__}:{first + found}"


def rank() -> int:
    return dist.get_rank()


def x() -> torch.Tensor:
    return torch.ones(X)


# The five hangs


def a_receive_without_a_sender() -> None:
    if rank() == 1:
        dist.recv(x(), 0)  # rank 1


def a_collective_that_one_rank_never_enters() -> None:
    if rank() == 2:
        dist.recv(x(), 0)  # rank 2
    dist.all_reduce(x())  # ranks 0 and 1


def two_ranks_that_both_send_first() -> None:
    if rank() < 2:
        dist.send(x(), 1 - rank())  # ranks 0 and 1
        dist.recv(x(), 1 - rank())


def a_barrier_under_rank_0() -> None:
    dist.all_reduce(x())
    if rank() == 0:
        dist.barrier()  # rank 0


def a_cycle_of_three() -> None:
    dist.recv(x(), (rank() + 1) % 3)  # ranks 0, 1 and 2
    dist.send(x(), (rank() - 1) % 3)


ALL_REDUCE = "all_reduce #0 (SUM) of 8 float32"
HANGS: list[tuple[Callable[[], None], dict[int, tuple[str, tuple[int, ...], str]]]] = [
    (a_receive_without_a_sender, {1: ("recv from rank 0 of 8 float32", (0,), "rank 1")}),
    (
        a_collective_that_one_rank_never_enters,
        {
            0: (ALL_REDUCE, (2,), "ranks 0 and 1"),
            1: (ALL_REDUCE, (2,), "ranks 0 and 1"),
            2: ("recv from rank 0 of 8 float32", (0,), "rank 2"),
        },
    ),
    (
        two_ranks_that_both_send_first,
        {r: (f"send to rank {1 - r} of 8 float32", (1 - r,), "ranks 0 and 1") for r in (0, 1)},
    ),
    (a_barrier_under_rank_0, {0: ("barrier #1", (1, 2), "rank 0")}),
    (
        a_cycle_of_three,
        {
            r: (f"recv from rank {(r + 1) % 3} of 8 float32", ((r + 1) % 3,), "ranks 0, 1 and 2")
            for r in range(3)
        },
    ),
]


@pytest.mark.parametrize(("fn", "waits"), HANGS, ids=lambda v: getattr(v, "__name__", ""))
def test_a_hang_is_told(
    fn: Callable[[], None], waits: dict[int, tuple[str, tuple[int, ...], str]]
) -> None:
    error = hangs(fn)
    assert {w.rank: (w.operation, w.waits_for, w.where) for w in error.waits} == {
        r: (operation, missing, line_of(fn, words))
        for r, (operation, missing, words) in waits.items()
    }
    assert error.finished == tuple(r for r in range(3) if r not in waits)
    assert error.dead == ()
    text = str(error)
    for wait in error.waits:
        line = wait.where.rsplit(":", 1)[1]
        (told,) = [t for t in text.splitlines() if f"rank {wait.rank}: waits in" in t]
        assert wait.operation in told
        assert told.endswith(f'at File "{__file__}", line {line}')
    for gone in error.finished:
        assert f"rank {gone}: has finished" in text


def test_a_hang_is_told_within_5_seconds_and_the_kernel_stays_usable() -> None:
    error = hangs(a_cycle_of_three, patience=2.0)  # as it is where nobody says
    assert "nothing has moved for 2 s" in str(error)
    assert go(dist.get_rank, 2).results == [0, 1]


# What is none


def sleeps_with_an_operation_outstanding() -> None:
    if rank() == 1:
        handle = dist.irecv(x(), 0, tag=5)
        time.sleep(LONG)
        dist.send(x(), 0)
        handle.wait()
    elif rank() == 0:
        dist.recv(x(), 1)
        dist.send(x(), 1, tag=5)


def a_large_message_on_a_slow_link() -> None:
    big = torch.ones(1 << 22)
    if rank() == 0:
        dist.barrier()
        dist.send(big, 1)
    else:
        handle = dist.irecv(big, 0) if rank() == 1 else None
        dist.barrier()
        if handle is not None:  # it takes nothing in for a while, as at the end of a slow link
            me = os.getpid()
            script = f"kill -STOP {me}; sleep {LONG}; kill -CONT {me}"
            stopped = subprocess.Popen(["sh", "-c", script])
            handle.wait()
            stopped.wait()


def ddp() -> nn.Module:
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(nn.Linear(X, X))


def a_slow_first_rank_in_ddp() -> None:
    net = ddp()
    for _ in range(2):
        loss = net(torch.ones(2, X)).sum()
        if rank() == 0:
            time.sleep(LONG / 2)
        loss.backward()


def a_rank_that_computes_for_long() -> None:
    until = time.monotonic() + LONG
    a = torch.ones(100, 100)
    while rank() == 1 and time.monotonic() < until:
        a = a @ a / 100
    dist.all_reduce(x())


def join_with_uneven_inputs() -> None:
    from torch.distributed.algorithms.join import Join

    net = ddp()
    with Join([net]):  # type: ignore[list-item]
        for _ in range(1 + rank()):
            time.sleep(LONG / 3)
            net(torch.ones(2, X)).sum().backward()


def an_asynchronous_send_never_waited_for() -> None:
    if rank() == 0:
        vars(dist)["kept"] = dist.isend(x(), 1)  # and this rank finishes at once
    elif rank() == 1:
        time.sleep(LONG)
        dist.recv(x(), 0)


def a_barrier_after_unequal_work() -> None:
    time.sleep(LONG * rank() / 2)
    dist.barrier()


def a_rank_that_writes_a_file() -> None:
    import tempfile

    if rank() == 0:
        until = time.monotonic() + LONG
        with tempfile.TemporaryFile() as file:
            while time.monotonic() < until:
                file.write(b"x" * 100_000)
                file.flush()
                os.fsync(file.fileno())
                file.seek(0)
    dist.barrier()


def a_thread_that_will_send() -> None:
    """The main threads wait for each other, until another thread speaks."""
    if rank() == 0:
        thread = threading.Thread(target=lambda: (time.sleep(LONG), dist.send(x(), 1, tag=1)))
        thread.start()
        dist.recv(x(), 1)
        thread.join()
    elif rank() == 1:
        dist.recv(x(), 0, tag=1)
        dist.send(x(), 0)


def a_timer_that_will_send() -> None:
    if rank() == 0:
        timer = threading.Timer(LONG, dist.send, (x(), 1), {"tag": 1})
        timer.start()
        dist.recv(x(), 1)
        timer.join()
    elif rank() == 1:
        dist.recv(x(), 0, tag=1)
        dist.send(x(), 0)


def a_wait_with_a_timeout_of_its_own() -> None:
    handle = dist.irecv(x(), 1 - rank()) if rank() < 2 else None
    if handle is not None:
        with pytest.raises(RuntimeError):
            handle.wait(timedelta(seconds=LONG))


def ranks_outside_a_subgroup_go_on() -> None:
    pair = dist.new_group([0, 1])
    if rank() == 0:
        time.sleep(LONG)
    if rank() < 2:
        dist.all_reduce(x(), group=pair)
    dist.barrier()


def a_receive_from_anyone() -> None:
    if rank() == 0:
        for _ in range(2):
            dist.recv(x())
    else:
        time.sleep(LONG * rank() / 2)
        dist.send(x(), 0)


@pytest.mark.parametrize(
    "fn",
    [
        sleeps_with_an_operation_outstanding, a_large_message_on_a_slow_link,
        a_slow_first_rank_in_ddp, a_rank_that_computes_for_long, join_with_uneven_inputs,
        an_asynchronous_send_never_waited_for, a_barrier_after_unequal_work,
        a_rank_that_writes_a_file, a_thread_that_will_send, a_timer_that_will_send,
        a_wait_with_a_timeout_of_its_own, ranks_outside_a_subgroup_go_on, a_receive_from_anyone,
    ],
)  # fmt: skip
def test_what_takes_long_is_no_hang(fn: Callable[[], None]) -> None:
    run = go(fn, patience=SHORT)
    assert run.state == "finished"
    assert run.seconds is not None
    assert run.seconds > LONG / 2


# Calls that do not fit


def another_kind() -> None:
    if rank() == 1:
        dist.broadcast(x(), 0)  # b
    else:
        dist.all_reduce(x())  # a


def another_size() -> None:
    dist.all_reduce(torch.ones(4 + 4 * rank()))  # a


def another_dtype() -> None:
    dist.all_reduce(x() if rank() != 1 else x().to(torch.int32))  # a


def another_reduction() -> None:
    dist.all_reduce(x(), op=dist.ReduceOp.MAX if rank() == 1 else dist.ReduceOp.SUM)  # a


def another_order() -> None:
    def one() -> None:
        dist.all_reduce(x())  # a

    def two() -> None:
        dist.all_reduce(x())  # b

    for call in (one, two) if rank() != 1 else (two, one):
        call()


def another_root() -> None:
    dist.broadcast(x(), rank() // 2)  # a


def another_piece_to_gather() -> None:
    dist.gather(torch.ones(4 + rank()), [torch.ones(4)] * 3 if rank() == 0 else None)  # a


def another_piece_to_scatter() -> None:
    dist.scatter(torch.ones(4 + 8 * rank()), [torch.ones(4)] * 3 if rank() == 0 else None)  # a


def a_receive_larger_than_its_message() -> None:
    if rank() == 0:
        dist.send(x(), 1)  # a
    elif rank() == 1:
        dist.recv(torch.ones(X + 4), 0)  # b


@pytest.mark.parametrize(
    ("fn", "what", "places"),
    [
        (another_kind, "kind", "ab"),
        (another_size, "size", "aa"),
        (another_dtype, "dtype", "aa"),
        (another_reduction, "reduction", "aa"),
        (another_order, "order", "abba"),
        (another_root, "root", "aa"),
        (another_piece_to_gather, "size", "aa"),
        (another_piece_to_scatter, "size", "aa"),
        (a_receive_larger_than_its_message, "size", "ab"),
    ],
)
def test_calls_that_do_not_fit_are_told(fn: Callable[[], None], what: str, places: str) -> None:
    with pytest.raises(labkit.Mismatch) as caught:
        go(fn)
    error = caught.value
    assert error.what == what
    assert [c.where for c in error.calls] == [line_of(fn, p) for p in places]
    assert error.calls[0].rank != error.calls[-1].rank
    for call in error.calls:
        line = call.where.rsplit(":", 1)[1]
        assert f'rank {call.rank}: {call.operation}, at File "{__file__}", line {line}' in str(
            error
        )


def legitimately_different() -> None:
    """Every rank's sizes, lines and roles differ, and all of it is right."""
    from torch.distributed.distributed_c10d import _coalescing_manager

    me, n = rank(), dist.get_world_size()
    for step in range(3):
        sizes = [[(a + b + step) % 3 for b in range(n)] for a in range(n)]
        given, got = sizes[me], [row[me] for row in sizes]
        dist.all_to_all_single(torch.ones(sum(got)), torch.ones(sum(given)), got, given)
        dist.reduce_scatter(torch.ones(me + 1), [torch.ones(r + 1) for r in range(n)])
        dist.all_gather_object([None] * n, "x" * 100 * me)
        dist.broadcast_object_list([me, "y" * 50 * me], src=step % n)
        dist.gather_object("z" * 30 * me, [None] * n if me == 0 else None)
        dist.scatter_object_list([None], list(range(n)) if me == 0 else None)
        pieces = [x() for _ in range(n)]
        dist.gather(x(), pieces if me == 1 else None, dst=1)
        dist.scatter(x(), pieces if me == 1 else None, src=1)
        for root in range(n):  # a role that goes round, each with its line
            if root == me:
                dist.broadcast(x(), root)
            else:
                dist.broadcast(x() * 0, root)
        with _coalescing_manager():
            dist.all_reduce(x())
            dist.all_reduce(x())
        if me == 0:
            dist.all_reduce(x())
        else:
            dist.all_reduce(x() * 0)
        dist.barrier()
        dist.monitored_barrier()
        group = dist.new_group([0, n - 1])
        if me in (0, n - 1):
            dist.all_reduce(torch.ones(step + 1), group=group)
            dist.destroy_process_group(group)


def test_a_call_that_torch_refuses_counts_for_nothing() -> None:
    def work() -> float:
        value = x() + rank()
        if rank() == 1:
            with pytest.raises(RuntimeError):
                dist.all_gather([x(), torch.ones(3)], value)
        dist.all_reduce(value)
        return float(value[0])

    run = go(work, 2)
    assert run.results == [3, 3]
    assert [e.seq for e in run.trace.events if e.kind == "collective"] == [0, 0]


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_what_may_differ_is_no_mismatch(ranks: int) -> None:
    assert go(legitimately_different, ranks).state == "finished"


def test_two_ranks_may_take_turns_at_the_branches_of_an_if() -> None:
    def work() -> None:
        for step in range(4):
            if rank() == step % 2:
                dist.all_reduce(x())
            else:
                dist.all_reduce(x() * 0)

    assert go(work, 2).state == "finished"


def test_ranks_may_describe_a_group_in_words_of_their_own() -> None:
    def work() -> None:
        mine = dist.new_group([0, 1], group_desc=f"mine, says rank {rank()}")
        big = torch.ones(1 << 22)
        for _ in range(3):
            dist.all_reduce(big, group=mine)

    run = go(work, 2, patience=0.1)
    assert run.state == "finished"
    groups = {e.group for e in run.trace.events if e.kind == "collective"}
    assert len(groups) == 1
    assert len(run.trace.retime(labkit.trace.CLUSTERS["H100"], "cpu").events) > 0


def test_a_send_buffer_changed_before_its_wait_is_told_on_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def work() -> float:
        data = x()
        if rank() == 0:
            handle = dist.isend(data, 1)  # posted
            data.fill_(7)
            handle.wait()  # waited for
        else:
            time.sleep(0.3)
            dist.recv(data, 0)
        return float(data[0])

    assert go(work, 2).results == [7, 7]  # the message is wrong, and nothing tells
    monkeypatch.setenv("LABKIT_CHECK_BUFFERS", "1")
    with pytest.raises(labkit.Mismatch, match="changed before its wait") as caught:
        go(work, 2)
    assert caught.value.what == "buffer"
    for words in ("posted", "waited for"):
        line = line_of(work, words).rsplit(":", 1)[1]
        assert f'at File "{__file__}", line {line}' in str(caught.value)


# Other places to hang in


def test_a_hang_in_a_subgroup_names_the_group_and_not_the_ranks_outside() -> None:
    def work() -> None:
        pair = dist.new_group([0, 2], group_desc="ends")
        if rank() == 0:
            dist.all_reduce(x(), group=pair)
        elif rank() == 2:
            dist.barrier()
        else:
            time.sleep(20)  # whatever it does then, ranks 0 and 2 need each other

    error = hangs(work)
    assert [(w.rank, w.waits_for) for w in error.waits] == [(0, (2,)), (2, (0, 1))]
    assert 'rank 0: waits in all_reduce #0 (SUM) in group "ends" of 8 float32' in str(error)
    assert "rank 1: running at" in str(error)


def test_two_groups_entered_in_another_order_are_a_cycle() -> None:
    def work() -> None:
        groups = [dist.new_group([0, 1], group_desc=name) for name in ("a", "b")]
        for group in groups if rank() == 0 else groups[::-1]:
            dist.all_reduce(x(), group=group)

    error = hangs(work, 2)
    assert [(w.rank, w.waits_for) for w in error.waits] == [(0, (1,)), (1, (0,))]
    assert ['"a"' in w.operation for w in error.waits] == [True, False]


def test_a_backward_that_one_rank_never_calls_is_told_at_the_others_backward() -> None:
    def work() -> None:
        net = ddp()
        loss = net(torch.ones(2, X)).sum()
        if rank() != 1:
            loss.backward()  # backward

    error = hangs(work)
    assert [(w.rank, w.waits_for) for w in error.waits] == [(0, (1,)), (2, (1,))]
    assert {w.where for w in error.waits} == {line_of(work, "backward")}


def test_a_rank_that_finished_and_closed_its_group_is_told_as_one_that_finished() -> None:
    def work() -> None:
        if rank() == 0:
            dist.barrier()
        dist.destroy_process_group()

    error = hangs(work)
    assert [(w.rank, w.waits_for) for w in error.waits] == [(0, (1, 2))]
    assert error.finished == (1, 2)


def test_a_message_whose_handle_was_dropped_is_gone() -> None:
    def work() -> None:
        if rank() == 0:
            dist.isend(x(), 1)
        else:
            time.sleep(0.3)
            dist.recv(x(), 0)

    error = hangs(work, 2)
    assert [(w.rank, w.waits_for) for w in error.waits] == [(1, (0,))]
    assert "the send of rank 0 is gone: its handle was not kept" in str(error)


def test_a_pool_that_has_nothing_to_do_hides_no_hang() -> None:
    def work() -> None:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(1) as pool:
            pool.submit(int).result()
            time.sleep(0.1)
            dist.recv(x(), 1 - rank())

    assert [w.rank for w in hangs(work, 2).waits] == [0, 1]


def test_what_posts_no_operation_has_the_timeout_alone() -> None:
    def work() -> None:
        if rank() == 0:
            dist.distributed_c10d._get_default_store().wait(["never"], timedelta(seconds=60))
        dist.all_reduce(x())

    with pytest.raises(
        labkit.TimedOut, match=r"rank 0: running at .* has not entered all_reduce #0"
    ):
        go(work, 2, patience=SHORT, timeout=1.2)


def test_without_a_trace_there_is_the_timeout_alone() -> None:
    with pytest.raises(labkit.TimedOut):
        go(a_cycle_of_three, patience=SHORT, timeout=1.2, trace=False)


def test_a_death_is_told_as_a_death() -> None:
    def work() -> None:
        if rank() == 1:
            time.sleep(0.3)
            os._exit(5)
        dist.all_reduce(x())

    with pytest.raises(labkit.RankFailed, match="rank 1 ended its process with exit code 5"):
        go(work, patience=0.1)


# The graph alone


Needs = dict[int, list[frozenset[int]]]


def closed(needs: Needs, members: set[int], gone: frozenset[int]) -> bool:
    return all(any(its <= members | gone for its in needs[r]) for r in members)


@pytest.mark.parametrize(
    ("needs", "gone", "expected"),
    [
        ({0: [{1}], 1: [{0}]}, set(), {0, 1}),
        ({0: [{1}]}, set(), set()),  # rank 1 runs
        ({0: [{1}]}, {1}, {0}),
        ({0: [{1}], 1: []}, set(), set()),  # rank 1 is about to go on
        ({0: [{1}, {2}], 1: [{0}]}, set(), {0, 1}),  # whatever rank 2 does
        ({0: [{1, 2}], 1: [{0}]}, set(), set()),  # rank 2 may send to rank 0
        ({0: [{1, 2}], 1: [{0}]}, {2}, {0, 1}),
        ({0: [{1}], 1: [{2}], 2: [{0}], 3: [{0}]}, set(), {0, 1, 2, 3}),
        ({3: [{0}], 0: [{1}]}, set(), set()),
    ],
)
def test_who_is_stuck(needs: dict[int, list[set[int]]], gone: set[int], expected: set[int]) -> None:
    frozen = {r: [frozenset(its) for its in sets] for r, sets in needs.items()}
    assert stuck(frozen, frozenset(gone)) == expected


@given(
    st.integers(2, 5).flatmap(
        lambda n: st.tuples(
            st.dictionaries(
                st.integers(0, n - 1),
                st.lists(st.frozensets(st.integers(0, n - 1), min_size=1), max_size=3),
                max_size=n,
            ),
            st.frozensets(st.integers(0, n - 1)),
        )
    )
)
def test_the_stuck_ranks_are_all_sets_that_wait_for_themselves(
    state: tuple[Needs, frozenset[int]],
) -> None:
    needs, gone = state
    waiting = [r for r in needs if r not in gone]
    subsets = itertools.chain.from_iterable(
        itertools.combinations(waiting, k) for k in range(len(waiting) + 1)
    )
    expected: set[int] = set()
    for members in map(set, subsets):
        if closed(needs, members, gone):
            expected |= members
    assert stuck(needs, gone) == expected


Operation = tuple[str, int]  # what, and the peer or (of a collective) the bits of its members
NUMBERS = itertools.count()


@st.composite
def programs(draw: st.DrawFn) -> list[list[Operation]]:
    """Random programs of 2 to 4 ranks: messages and collectives, most of which will hang."""
    n = draw(st.integers(2, 4))
    operation = st.one_of(
        st.tuples(st.sampled_from(["send", "recv"]), st.integers(0, n - 1)),
        st.tuples(st.just("recv"), st.just(-1)),
        st.tuples(st.just("collective"), st.sampled_from([(1 << n) - 1, 3])),
    )
    ranks = [draw(st.lists(operation, max_size=5)) for _ in range(n)]
    return [
        [(k, p) for k, p in its if (p != r if k != "collective" else p >> r & 1)]
        for r, its in enumerate(ranks)
    ]


@settings(max_examples=200, deadline=None)
@given(programs(), st.randoms(use_true_random=False))
def test_who_is_called_stuck_never_goes_on_and_at_the_end_all_are(
    programs: list[list[Operation]], random: Any
) -> None:
    n = len(programs)
    matcher, at = Matcher(), [0] * n
    counts: dict[Any, int] = {}
    waits: dict[int, Call] = {}
    doomed: set[int] = set()

    def count(*key: Any) -> int:
        counts[key] = counts.get(key, -1) + 1
        return counts[key]

    def post(r: int) -> None:
        kind, peer = programs[r][at[r]]
        members = tuple(q for q in range(n) if kind != "collective" or peer >> q & 1)
        group = Group(str(members), "default", members)
        ends = (r, peer) if kind == "send" else (peer, r)
        seq = count(r, members) if kind == "collective" else -1
        if kind != "collective" and peer >= 0:
            seq = count(r, *ends)
        call = Call(
            r, next(NUMBERS), kind, kind, group, seq, -1 if kind == "collective" else peer, 0,
            1, 4, "float32", None, "a.py:1",
        )  # fmt: skip
        matcher.take([call])
        waits[r] = call

    def complete(r: int) -> None:
        call = waits.pop(r)
        if call.kind == "recv" and call.peer < 0:
            sources = [s for s in range(n) if s != r]
            sent = [s for s in sources if counts.get((s, s, r), -1) > counts.get((r, s, r), -1)]
            source = random.choice(sent)
            matcher.take([call._replace(peer=source, seq=count(r, source, r))])
        at[r] += 1

    while True:
        gone = frozenset(r for r in range(n) if at[r] == len(programs[r]))
        doomed |= stuck({r: matcher.needs(c) for r, c in waits.items()}, gone)
        may_post = [r for r in range(n) if r not in waits and r not in gone]
        may_end = [r for r, c in waits.items() if not matcher.missing(c)]
        if not may_post and not may_end:
            break
        chosen = random.choice(may_post + may_end)
        assert chosen not in doomed
        (post if chosen in may_post else complete)(chosen)
    assert doomed == set(waits)
