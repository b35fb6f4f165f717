"""Clocks of two machines: their offset is found through the store, with an honest error."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import torch.distributed as dist

from labkit.runtime.clock import Offset, compare, on_rank_0s_clock
from labkit.trace.log import Log

AHEAD = 5_000_000_000  # ns


def offsets(tmp_path: Path, machines: list[str]) -> list[Offset]:
    """What each rank finds, run in threads; the clock of machine "b" is 5 s ahead."""
    found: dict[int, Offset] = {}

    def one(rank: int) -> None:
        ahead = AHEAD if machines[rank] == "b" else 0
        store = dist.FileStore(str(tmp_path / "store"), len(machines))
        found[rank] = compare(
            store, rank, len(machines), "start",
            now=lambda: time.perf_counter_ns() + ahead, here=machines[rank],
        )  # fmt: skip

    threads = [threading.Thread(target=one, args=(r,)) for r in range(len(machines))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return [found[r] for r in range(len(machines))]


def test_one_machine_has_one_clock(tmp_path: Path) -> None:
    assert [(o.ahead, o.error) for o in offsets(tmp_path, ["a", "a", "a"])] == [(0, 0)] * 3


def test_another_machines_clock_is_found_within_its_stated_error(tmp_path: Path) -> None:
    found = offsets(tmp_path, ["a", "b", "a", "b"])
    for rank in (0, 2):
        assert (found[rank].ahead, found[rank].error) == (0, 0)
    for rank in (1, 3):
        assert 0 < found[rank].error < 1_000_000_000
        assert abs(found[rank].ahead - AHEAD) <= found[rank].error


def test_a_record_moves_to_rank_0s_clock_with_drift() -> None:
    log = Log(1)
    log.entries.clear()
    log.first = (1_000, 0, 0)
    log.open("forward", {})
    log.entries[0] = (*log.entries[0][:2], (1_500, 1, 2), *log.entries[0][3:])
    log.event("collective", "all_reduce", (1_600, 3, 4), (1_800, 5, 6), op=0)
    log.done[0] = 2_000
    # 100 ns ahead at 1,000, 200 ns ahead at 2,000: 150 in the middle
    moved = on_rank_0s_clock(log.finish(), Offset(1_000, 100), Offset(2_000, 200))
    assert moved.first == (900, 0, 0)
    assert moved.entries[0][2] == (1_350, 1, 2)
    assert moved.entries[1][2:4] == ((1_440, 3, 4), (1_620, 5, 6))
    assert moved.done == {0: 1_800}


def test_a_record_of_the_same_machine_stays_as_it_is() -> None:
    record = Log(1).finish()
    assert on_rank_0s_clock(record, Offset(1), Offset(2)) is record
