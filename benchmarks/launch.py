"""Launching four ranks from a warm kernel, against `torch.multiprocessing.spawn`.

Claims: the median ratio of times is at most 0.10; memory (PSS) of the kernel, the rank server and
four ranks is at most 0.5 of the kernel's with four spawned processes. Both run the same function:
an all-reduce of one number. Pairs are interleaved. `python benchmarks/launch.py [pairs]`
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import psutil
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from pairs import ratio, table

import labkit

RANKS = 4


def total() -> float:
    x = torch.ones(1)
    dist.all_reduce(x)
    return x.item()


def spawned(rank: int, store: str, hold: str) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, RANKS), rank=rank, world_size=RANKS)
    assert total() == RANKS
    stay(hold)
    dist.destroy_process_group()


def launched(hold: str) -> float:
    value = total()
    stay(hold)
    return value


def stay(hold: str) -> None:
    """Say that this rank is up, and stay until the file `hold` is gone."""
    if hold:
        Path(f"{hold}-{os.getpid()}").touch()
        while Path(hold).exists():
            time.sleep(0.02)


def by_spawn(hold: str = "") -> None:
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(spawned, args=(f"{folder}/store", hold), nprocs=RANKS)


def by_labkit(hold: str = "") -> None:
    run = labkit.launch(launched, hold, ranks=RANKS, threads=1, backend="gloo", trace=False)
    assert run.results == [RANKS] * RANKS


def memory(way: str) -> float:
    """PSS of a fresh kernel and all its children while four ranks are up, in MB."""
    with tempfile.TemporaryDirectory() as folder:
        hold = Path(folder, "hold")
        hold.touch()
        kernel = psutil.Popen([sys.executable, __file__, way, str(hold)])
        try:
            while len(list(Path(folder).glob("hold-*"))) < RANKS:
                time.sleep(0.05)
            tree = [kernel, *kernel.children(recursive=True)]
            return sum(float(p.memory_full_info().pss) for p in tree) / 1e6
        finally:
            hold.unlink()
            kernel.wait()


def seconds(launch: Callable[[], None]) -> float:
    began = time.perf_counter()
    launch()
    return time.perf_counter() - began


def main(pairs: int) -> None:
    ours, peer = memory("labkit"), memory("spawn")
    by_labkit()  # the first launch starts the server
    both = [(seconds(by_labkit), seconds(by_spawn)) for _ in range(pairs)]
    found = ratio([a for a, _ in both], [b for _, b in both])
    print(f"{RANKS} ranks up, one all-reduce, down; {pairs} pairs; {os.cpu_count()} cores")
    rows = [
        ("seconds", f"{median(a for a, _ in both):.3f}", f"{median(b for _, b in both):.3f}",
         str(found), "0.10"),
        ("MB (PSS)", f"{ours:.0f}", f"{peer:.0f}", f"{ours / peer:.2f}", "0.50"),
    ]  # fmt: skip
    print(table(("", "labkit", "spawn", "ratio [95 %]", "claim: at most"), rows))


WAYS = {"labkit": by_labkit, "spawn": by_spawn}

if __name__ == "__main__":
    if len(sys.argv) == 3:  # this process is the kernel of `memory`
        WAYS[sys.argv[1]](sys.argv[2])
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
