"""The kernel's counts: right for a connection, for gloo's collectives, and without side effects."""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import labkit
from labkit.runtime import wire
from labkit.trace.traffic import closed_form

linux = pytest.mark.skipif(sys.platform != "linux", reason="other kernels keep no such count")


def grown(before: tuple[int, int]) -> tuple[int, int]:
    after = wire.counters()
    assert after is not None
    return after[0] - before[0], after[1] - before[1]


def start() -> tuple[int, int]:
    counts = wire.counters()
    assert counts is not None
    return counts


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        two, _ = server.accept()
    with closing(one), closing(two):
        yield one, two


def send(one: socket.socket, two: socket.socket, size: int) -> None:
    one.sendall(b"x" * size)
    left = size
    while left:
        left -= len(two.recv(left))


@linux
def test_what_a_connection_sent_and_received(pair: tuple[socket.socket, socket.socket]) -> None:
    one, two = pair
    before = start()
    send(one, two, 100_000)
    send(two, one, 50)
    assert grown(before) == (100_050, 100_050)


@linux
def test_two_descriptors_of_one_socket_count_once(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    one, two = pair
    send(one, two, 1000)
    before = start()
    with one.dup(), one.dup():
        assert grown(before) == (0, 0)


@linux
def test_other_files_and_other_sockets_do_not_count() -> None:
    before = start()
    here, there = socket.socketpair()
    read, write = os.pipe()
    with here, there, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        here.sendall(b"x" * 100)
        os.write(write, b"x" * 100)
        datagrams.bind(("127.0.0.1", 0))
        datagrams.sendto(b"x" * 100, datagrams.getsockname())
        assert grown(before) == (0, 0)
    os.close(read)
    os.close(write)


@linux
def test_reading_leaves_sockets_as_they_are(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    one, two = pair
    files = sorted(Path("/proc/self/fd").iterdir())
    socket.setdefaulttimeout(0.01)  # would turn any Python socket made now to non-blocking
    try:
        start()
    finally:
        socket.setdefaulttimeout(None)
    assert os.get_blocking(one.fileno())
    assert os.get_blocking(two.fileno())
    assert sorted(Path("/proc/self/fd").iterdir()) == files


@pytest.mark.parametrize("counts", [None, (b"\x00" * 104)])
def test_a_system_that_does_not_count_says_none_and_not_zero(
    monkeypatch: pytest.MonkeyPatch, counts: bytes | None
) -> None:
    class OldKernel:
        """A kernel without the option, or one that fills in less of it."""

        @staticmethod
        def getsockopt(_: int, level: int, name: int, info: object, size: object) -> int:
            if counts is None:
                return -1
            size._obj.value = len(counts)  # type: ignore[attr-defined]
            return 0

    wire._counted.cache_clear()
    monkeypatch.setattr(wire, "_libc", OldKernel)
    assert wire.counters() is None
    wire._counted.cache_clear()
    monkeypatch.undo()
    monkeypatch.setattr(sys, "platform", "darwin")
    assert wire.counters() is None
    wire._counted.cache_clear()


def test_the_layout_is_the_kernels() -> None:
    # struct tcp_info in linux/tcp.h: 8 bytes, 24 words, then long and short ones in turn.
    assert struct.calcsize("=8B24I3Q") == wire._RECEIVED
    assert struct.calcsize("=8B24I4Q6I4Q2I") == wire._SENT
    assert wire._SENT + struct.calcsize("=Q") == wire._AGAIN


# gloo's collectives, on ranks.

S = 4 * 1_200_000  # bytes of the full size; divides by 2, 3 and 4


@linux
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_gloos_collectives_move_their_closed_form(ranks: int, tmp_path: Path) -> None:
    def move(folder: Path) -> dict[str, tuple[int, int]]:
        import time

        import torch
        import torch.distributed as dist

        from labkit.runtime import wire

        n = dist.get_world_size()
        full, part = torch.ones(S // 4), torch.ones(S // 4 // n)
        calls = {
            "all_reduce": lambda: dist.all_reduce(full),
            "all_gather": lambda: dist.all_gather_single(full, part),
            "all_to_all": lambda: dist.all_to_all_single(torch.empty_like(full), full),
            "reduce_scatter": lambda: dist.reduce_scatter_single(part, full),
        }

        def meet(place: str) -> None:
            # By files: a barrier of gloo's would count.
            (folder / f"{place} {dist.get_rank()}").touch()
            while len(list(folder.glob(f"{place} *"))) < n:
                time.sleep(0.01)

        def still() -> tuple[int, int]:
            # A rank may be done while the last acknowledgements to it are under way.
            before = None
            while before != (now := wire.counters()):
                before = now
                time.sleep(0.05)
            assert now is not None
            return now

        moved = {}
        for name, call in calls.items():
            before = still()
            meet(f"{name} begins")
            call()
            meet(f"{name} ended")
            after = still()
            moved[name] = (after[0] - before[0], after[1] - before[1])
            meet(f"{name} read")
        return moved

    run = labkit.launch(move, tmp_path, ranks=ranks, threads=1, seed=0, timeout=60, trace=False)
    for moved in run.results:
        for name in ("all_reduce", "all_gather", "all_to_all"):
            payload = S // ranks if name == "all_gather" else S
            expected = closed_form(name, payload, ranks)
            assert moved[name] == pytest.approx((expected, expected), rel=1e-3), name
    # gloo makes a reduce-scatter of an all-reduce. The bytes of one rank vary: in all they do not.
    sent = sum(moved["reduce_scatter"][0] for moved in run.results)
    assert sent == pytest.approx(ranks * (closed_form("all_reduce", S, ranks) or 0), rel=1e-3)
