"""What this machine's ranks and the gloo between them can do, as a `Cluster` to retime on.

A launched run of a few ranks times each operation at several sizes, one after the other, with
nothing beside it. Time against size gives a line: its value at nothing is the latency, its slope
the bandwidth. Each operation gets a line of its own, since gloo is no ring everywhere (its
reduce-scatter moves what an all-reduce moves).

gloo's work is done by threads of its own, on the cores that ranks compute on. The share of a core
that they take while an operation is under way is measured too (`Link.cpu`): that much of a
transfer cannot be hidden behind compute. Cost: about half a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch
import torch.distributed as dist

from labkit.runtime.launch import launch
from labkit.trace.hardware import Cluster, Device, Link, ring, whole

__all__ = ["measure_machine"]

SIZES = (1 << 10, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22)  # bytes that one rank puts in
SOURCE = "measured on this machine"


@dataclass(frozen=True)
class _Sample:
    """One operation at one size: its median time, and CPU seconds of a rank's threads a second."""

    seconds: float
    cpu: float


def measure_machine(ranks: int = 2, repeats: int = 12) -> Cluster:
    """Launch `ranks` on this machine's CPU and measure them.

    Parameters
    ----------
    ranks : from 2 up; with more ranks than cores the figures are of ranks that share cores
    repeats : of each operation at each size

    Raises
    ------
    ValueError : fewer than 2 ranks, or no repeat
    """
    if ranks < 2:
        raise ValueError(f"ranks={ranks}: a message needs 2 ranks")
    if repeats < 1:
        raise ValueError(f"repeats={repeats}: measure at least once")
    run = launch(
        _measure, repeats, ranks=ranks, threads=1, backend="gloo", trace=False, timeout=120
    )
    found: list[tuple[float, dict[str, list[_Sample]]]] = list(run.results)
    flops = median(rate for rate, _ in found)
    device = Device("this machine", {"float32": flops}, {"float32": flops}, source=SOURCE)
    links = {}
    for name in found[0][1]:
        samples = [samples[name] for _, samples in found]
        links[name] = _line(name, samples, ranks)
    message = links.pop("message")
    return Cluster(device, message, per_node=ranks, name="this machine", operations=links)


def _line(name: str, samples: list[list[_Sample]], ranks: int) -> Link:
    """Latency, bandwidth and CPU share of one operation."""
    steps, share = (1, 1.0) if name == "message" else ring(name, ranks)
    sizes = np.array([
        size if name == "message" else share * whole(name, size, ranks) for size in SIZES
    ])  # fmt: skip
    seconds = np.array([max(s[i].seconds for s in samples) for i in range(len(SIZES))])
    # Relative errors count: a small operation is to be right, too.
    rows = np.stack([np.ones(len(sizes)), sizes], axis=1) / seconds[:, None]
    (latency, slope), *_ = np.linalg.lstsq(rows, np.ones(len(sizes)), rcond=None)
    latency = max(latency, min(seconds) / 10)
    slope = max(slope, 1e-15)
    cpu = float(np.mean([s[i].cpu for s in samples for i in range(len(SIZES))]))
    return Link(float(latency) / steps, 1 / float(slope), name, SOURCE, cpu=min(cpu, 1.0))


def _measure(repeats: int) -> tuple[float, dict[str, list[_Sample]]]:
    """On each rank: FLOP/s of a matrix product, and samples of each operation by size."""
    samples = {
        name: [_time(make(size // 4), repeats, 2 if name == "message" else 1) for size in SIZES]
        for name, make in _operations().items()
    }
    return _flops(), samples


def _time(go: Callable[[], object], repeats: int, operations: int) -> _Sample:
    for _ in range(2):
        go()
    taken = []
    began = (time.perf_counter(), time.process_time(), time.thread_time())
    for _ in range(repeats):
        at = time.perf_counter()
        go()
        taken.append((time.perf_counter() - at) / operations)
    wall, whole, own = (
        now - then
        for now, then in zip(
            (time.perf_counter(), time.process_time(), time.thread_time()), began, strict=True
        )
    )
    # What the rank's own thread takes in its calls is in a recording's CPU time already.
    return _Sample(median(taken), max(whole - own, 0.0) / wall)


def _flops(size: int = 384) -> float:
    a = torch.randn(size, size)
    taken = []
    for _ in range(8):
        began = time.perf_counter()
        a @ a
        taken.append(time.perf_counter() - began)
    return 2 * size**3 / min(taken)


def _operations() -> Mapping[str, Callable[[int], Callable[[], object]]]:
    """By name, what makes an operation on so many elements of this rank."""
    rank, ranks = dist.get_rank(), dist.get_world_size()

    def there_and_back(n: int) -> Callable[[], object]:
        x = torch.ones(n)

        def go() -> None:
            if rank == 0:
                dist.send(x, 1)
                dist.recv(x, 1)
            elif rank == 1:
                dist.recv(x, 0)
                dist.send(x, 0)

        return go

    def of(call: Callable[..., object], out: float = 0.0) -> Callable[[int], Callable[[], object]]:
        def make(n: int) -> Callable[[], object]:
            x = torch.ones(n - n % ranks)
            y = torch.ones(int(len(x) * out))
            return (lambda: call(y, x)) if out else (lambda: call(x))

        return make

    return {
        "message": there_and_back,
        "all_reduce": of(dist.all_reduce),
        "all_gather": of(dist.all_gather_single, float(ranks)),
        "reduce_scatter": of(dist.reduce_scatter_single, 1 / ranks),
        "broadcast": of(lambda x: dist.broadcast(x, 0)),
    }
