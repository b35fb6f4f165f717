"""Devices, links and clusters, as data: what a trace can be retimed on.

A device is said by its rates, a link by its latency and its bandwidth one way, a cluster by which
link joins which ranks: one inside a node, one between nodes, one between pods. Every figure names
its source, and anybody's own figures make a device, a link or a cluster in one line.

A collective costs what a ring costs: `steps` times the latency, plus the bytes that one rank sends
(`traffic.closed_form`) over the bandwidth, on the slowest link that the ring crosses.

=============================== ======== =====================================================
operation                       steps    model
=============================== ======== =====================================================
all_reduce                      2(n−1)   the tensor goes round the ring twice, in n pieces
reduce_scatter, all_gather      n−1      once, in n pieces
all_to_all                      n−1      one piece for each other rank, one after the other
broadcast, reduce               n−1      a chain, in pieces so small that they flow: its length in
                                         latency, and the whole tensor over one link
gather, scatter                 1        straight from, or to, the root, whose link carries all
barrier                         2(n−1)   an all-reduce of nothing
=============================== ======== =====================================================

A message costs one step and its bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from labkit.trace.tables import brief, in_bytes
from labkit.trace.traffic import closed_form

if TYPE_CHECKING:
    from numpy.typing import NDArray

Size = TypeVar("Size", float, "NDArray[np.float64]")  # bytes, and with them seconds

__all__ = ["CLUSTERS", "DEVICES", "LINKS", "Cluster", "Device", "Link", "ring", "this_machine"]

_PIECES = ("all_gather", "gather")  # whose payload is one rank's piece of the whole tensor


@dataclass(frozen=True)
class Device:
    """What one rank computes on.

    Parameters
    ----------
    name : what it is called
    peak : FLOP/s by dtype, dense, as its maker says
    achieved : FLOP/s of the best matrix product measured, by dtype; may be empty
    memory : bytes; None: not said
    bandwidth : bytes a second of that memory; None: not said
    source : who says so
    """

    name: str
    peak: Mapping[str, float] = field(hash=False)
    achieved: Mapping[str, float] = field(default_factory=dict, hash=False)
    memory: float | None = None
    bandwidth: float | None = None
    source: str = ""

    def __post_init__(self) -> None:
        if not self.peak:
            raise ValueError(f"device {self.name!r}: peak is empty, give FLOP/s for one dtype")
        for rates in ("peak", "achieved"):
            for dtype, rate in getattr(self, rates).items():
                _positive(f"device {self.name!r}: {rates}[{dtype!r}]", rate)
        for name in ("memory", "bandwidth"):
            if getattr(self, name) is not None:
                _positive(f"device {self.name!r}: {name}", getattr(self, name))

    def dtype(self) -> str:
        """What it computes in where nobody says: bfloat16, or else the first one it knows."""
        return "bfloat16" if "bfloat16" in self.peak else next(iter(self.peak))

    def efficiency(self, dtype: str | None = None) -> float:
        """The share of its peak that the best measured matrix product reached.

        Raises
        ------
        ValueError : nobody measured one in `dtype`
        """
        dtype = dtype or self.dtype()
        if dtype not in self.achieved:
            raise ValueError(
                f"{self.name}: no matrix product in {dtype} was measured; "
                f"state a share of its peak yourself, as in efficiency=0.5"
            )
        return self.achieved[dtype] / self._peak(dtype)

    def flops(self, dtype: str | None = None, efficiency: float | None = None) -> float:
        """FLOP/s in `dtype` at a share `efficiency` of the peak; None: as measured."""
        dtype = dtype or self.dtype()
        share = self.efficiency(dtype) if efficiency is None else efficiency
        return self._peak(dtype) * share

    def _peak(self, dtype: str) -> float:
        if dtype not in self.peak:
            raise ValueError(f"{self.name}: no peak for dtype={dtype!r} ({', '.join(self.peak)})")
        return self.peak[dtype]


@dataclass(frozen=True)
class Link:
    """What joins two ranks.

    Parameters
    ----------
    latency : seconds, of each step
    bandwidth : bytes a second, one way; ``math.inf`` for a link that takes no time to fill
    name : what it is called
    source : who says so
    base : seconds, once an operation, before its first step
    cpu : share of the time under way for which it holds the processors of the ranks at its ends,
        so that nothing can be computed there: none on a GPU's network, most on sockets
    """

    latency: float
    bandwidth: float
    name: str = ""
    source: str = ""
    base: float = 0.0
    cpu: float = 0.0

    def __post_init__(self) -> None:
        where = f"link {self.name!r}: " if self.name else "link: "
        for name in ("latency", "base"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise ValueError(f"{where}{name}={value}: give seconds, 0 or more")
        if not 0 <= self.cpu <= 1:
            raise ValueError(f"{where}cpu={self.cpu}: give a share from 0 to 1")
        if not self.bandwidth > 0:
            raise ValueError(f"{where}bandwidth={self.bandwidth}: give bytes a second, above 0")

    def __str__(self) -> str:
        fast = math.isinf(self.bandwidth)
        rate = "no limit" if fast else f"{in_bytes(self.bandwidth)}/s"
        figures = f"{brief(self.latency)}, {rate}"
        return f"{self.name}: {figures}" if self.name else figures

    def time(self, steps: float, size: Size) -> Size:
        """Seconds for `steps` steps that carry `size` bytes in all."""
        return self.base + steps * self.latency + size / self.bandwidth


@dataclass(frozen=True)
class Cluster:
    """Ranks on devices of one kind, in nodes and pods; rank r is the r-th device, node by node.

    Parameters
    ----------
    device : what every rank computes on
    links : inside a node, between nodes, between pods; the last one given also serves what lies
        further out, so a single link joins everything
    per_node : devices in a node
    per_pod : nodes in a pod; needed for a third link, and only for that
    name : what it is called
    operations : for collectives that do not cost what a ring of `links` costs, by name, the link
        whose ring would cost as much
    shared : whether all groups and pairs of ranks that leave a node (or a pod) share one link out
        of it, in equal parts; with a single link, whether all share that one. Retiming counts them
        in the trace, whether or not they meet in time: where they take turns it is too slow
    """

    device: Device
    links: tuple[Link, ...]
    per_node: int = 8
    per_pod: int | None = None
    name: str = ""
    operations: Mapping[str, Link] = field(default_factory=dict, hash=False)
    shared: bool = False

    def __init__(
        self,
        device: Device,
        links: Link | Sequence[Link],
        per_node: int = 8,
        per_pod: int | None = None,
        name: str = "",
        operations: Mapping[str, Link] | None = None,
        shared: bool = False,
    ) -> None:
        links = (links,) if isinstance(links, Link) else tuple(links)
        if not 1 <= len(links) <= 3:
            raise ValueError(
                f"links: {len(links)} given; give 1 to 3 (inside a node, between nodes and pods)"
            )
        if per_node < 1:
            raise ValueError(f"per_node={per_node}: a node has at least 1 device")
        if per_pod is not None and per_pod < 1:
            raise ValueError(f"per_pod={per_pod}: a pod has at least 1 node")
        if (len(links) == 3) != (per_pod is not None):
            raise ValueError(
                f"per_pod={per_pod} with {len(links)} links: pods need both a size and a third link"
            )
        values = {
            "device": device, "links": links, "per_node": per_node, "per_pod": per_pod,
            "name": name or device.name, "operations": dict(operations or {}),
            "shared": shared,
        }  # fmt: skip
        for operation in operations or {}:
            ring(operation, 2)  # refuses a name that is no collective's
        for key, value in values.items():
            object.__setattr__(self, key, value)

    def __str__(self) -> str:
        return f"{self.name} ({'; '.join(map(str, self.links))})"

    def link(self, a: int, b: int) -> Link:
        """What joins ranks `a` and `b`."""
        return self.crossed((a, b))[-1]

    def carrying(self, operation: str, ranks: Sequence[int] | range) -> tuple[Link, ...]:
        """The links that a collective of `ranks` passes over; none for one rank."""
        own = self.operations.get(operation)
        return self.crossed(ranks) if own is None else (own,) if len(ranks) > 1 else ()

    def crossed(self, ranks: Sequence[int] | range) -> tuple[Link, ...]:
        """The links that a ring through `ranks`, in this order, passes over; none for one rank."""
        at = np.asarray(ranks)
        level = np.zeros(len(at), int)
        sizes = [self.per_node] + ([self.per_node * self.per_pod] if self.per_pod else [])
        for size in sizes:
            level += at // size != np.roll(at, -1) // size
        last = len(self.links) - 1
        levels = sorted({min(found, last) for found in level.tolist()}) if len(at) > 1 else []
        return tuple(self.links[found] for found in levels)

    def scaled(self, latency: float = 1.0, bandwidth: float = 1.0) -> Cluster:
        """The same cluster with so many times the latency and the bandwidth on every link.

        Raises
        ------
        ValueError : what comes out is no link
        """

        def other(link: Link) -> Link:
            return replace(
                link, latency=link.latency * latency, base=link.base * latency,
                bandwidth=link.bandwidth * bandwidth,
            )  # fmt: skip

        operations = {name: other(link) for name, link in self.operations.items()}
        return self._with([other(link) for link in self.links], operations)

    def divided(self, among: Sequence[int]) -> Cluster:
        """The same cluster where each link is shared by so many, as one of them finds it."""
        links = zip(self.links, among, strict=True)
        return self._with([replace(k, bandwidth=k.bandwidth / n) for k, n in links])

    def _with(self, links: Sequence[Link], operations: Mapping[str, Link] | None = None) -> Cluster:
        return Cluster(
            self.device, links, self.per_node, self.per_pod, self.name,
            self.operations if operations is None else operations, self.shared,
        )  # fmt: skip

    def left(self, ranks: Iterable[int], others: Iterable[int]) -> tuple[tuple[int, int], ...]:
        """What traffic from `ranks` to `others` has to leave: (link, number of the node or pod).

        Inside a node nothing is shared. A single link joins everything, as one wire would.
        """
        ranks, others = set(ranks), set(others)
        if len(self.links) == 1:
            return ((0, 0),) if len(ranks | others) > 1 else ()
        sizes = (self.per_node, self.per_node * (self.per_pod or 1))[: len(self.links) - 1]
        return tuple(
            (link, unit)
            for link, size in enumerate(sizes, start=1)
            for unit in sorted({rank // size for rank in ranks})
            if any(other // size != unit for other in others)
        )

    def collective(
        self,
        operation: str,
        payload: Size,
        ranks: Sequence[int] | range,
        payers: int | None = None,
    ) -> Size:
        """Seconds that a collective lasts, from when the last of `ranks` is there.

        Parameters
        ----------
        operation : ``all_reduce``, ``broadcast`` …
        payload : bytes, as `traffic.closed_form` takes it (of a rooted one: the root's); an array
            gives an array
        payers : how many ranks put in `payload` each, where `ranks` stand for another number

        Raises
        ------
        ValueError : there is no such operation
        """
        steps, share = ring(operation, len(ranks))
        size = share * whole(operation, payload, payers or len(ranks))
        lasts = payload * 0.0
        for link in self.carrying(operation, ranks):
            lasts = np.maximum(lasts, link.time(steps, size))
        return lasts

    def message(self, size: float, source: int, target: int) -> float:
        """Seconds from a message's leaving to its arrival; `size` in bytes."""
        return self.link(source, target).time(1, size)


def ring(operation: str, ranks: int) -> tuple[int, float]:
    """Steps, and the bytes that one rank sends as a share of the whole tensor.

    Raises
    ------
    ValueError : there is no such operation
    """
    others = ranks - 1
    steps = {
        "all_reduce": 2 * others, "reduce_scatter": others, "all_gather": others,
        "all_to_all": others, "broadcast": others, "reduce": others, "gather": min(others, 1),
        "scatter": min(others, 1), "barrier": 2 * others,
    }  # fmt: skip
    if operation not in steps:
        raise ValueError(f"no cost is known for {operation!r}; known: {', '.join(sorted(steps))}")
    piece = 1 / ranks if operation in _PIECES else 1.0
    return steps[operation], closed_form(operation, piece, ranks, at_root=True) or 0.0


def whole(operation: str, payload: Size, ranks: int) -> Size:
    """Bytes of the whole tensor, of which `payload` is what one rank puts in."""
    return payload * ranks if operation in _PIECES else payload


def this_machine(
    latency: float, bandwidth: float, flops: float, dtype: str = "float32", ranks: int = 8
) -> Cluster:
    """A cluster of one node, made of what was measured on this machine.

    Parameters
    ----------
    latency : seconds of one step between two ranks
    bandwidth : bytes a second from one rank to another
    flops : FLOP/s of one rank's matrix product in `dtype`, on its share of the cores
    ranks : how many ranks the machine is to hold
    """
    source = "measured on this machine"
    device = Device("this machine", {dtype: flops}, {dtype: flops}, source=source)
    return Cluster(device, Link(latency, bandwidth, "between ranks", source), per_node=ranks)


def _positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ValueError(f"{name}={value}: give a number above 0")


def _gpu(
    name: str, bfloat16: float, memory: float, bandwidth: float, source: str,
    matmul: float | None = None, **more: float,
) -> Device:  # fmt: skip
    """A GPU, from figures in TFLOP/s, GB and TB/s."""
    peak = {"bfloat16": bfloat16 * 1e12, **{k: v * 1e12 for k, v in more.items()}}
    achieved = {} if matmul is None else {"bfloat16": matmul * 1e12}
    return Device(name, peak, achieved, memory * 1e9, bandwidth * 1e12, source)


_MATMUL = "; best matrix product: published measurements, not repeated here"
_TUNER = "latency: the constants of NCCL's own tuner, ring, low-latency protocol"
_FIGURES = (
    _gpu("A100", 312, 80, 2.0, "NVIDIA A100 80GB SXM datasheet" + _MATMUL, 271),
    _gpu("H100", 989, 80, 3.35, "NVIDIA H100 SXM datasheet" + _MATMUL, 795, float8=1979),
    _gpu("H200", 989, 141, 4.8, "NVIDIA H200 SXM datasheet"),
    _gpu("B200", 2250, 180, 8.0, "NVIDIA B200 datasheet"),
)

DEVICES: Mapping[str, Device] = MappingProxyType({device.name: device for device in _FIGURES})
"""GPUs by name; ``memory`` is decimal, FLOP/s are dense."""

LINKS: Mapping[str, Link] = MappingProxyType(
    {
        name: Link(latency, gigabytes * 1e9, name, f"bandwidth: {source}; {_TUNER}", base=6.6e-6)
        for name, latency, gigabytes, source in (
            ("NVLink 3", 0.6e-6, 300, "NVIDIA A100 datasheet, halved: it adds both directions"),
            ("NVLink 4", 0.6e-6, 450, "NVIDIA H100 datasheet, halved: it adds both directions"),
            ("NVLink 5", 0.6e-6, 900, "NVIDIA B200 datasheet, halved: it adds both directions"),
            ("network 200 Gb/s", 2.7e-6, 25, "one 200 Gb/s adapter for each GPU"),
            ("network 400 Gb/s", 2.7e-6, 50, "one 400 Gb/s adapter for each GPU"),
            (
                "network 400 Gb/s, 1:7",
                2.7e-6,
                50 / 7,
                "one 400 Gb/s adapter for each GPU, 1:7 between pods (Llama 3, section 3.3.1)",
            ),
        )
    }
)
"""Links by name, as one GPU sees them."""

CLUSTERS: Mapping[str, Cluster] = MappingProxyType(
    {
        name: Cluster(DEVICES[name], (LINKS[inside], LINKS[between]))
        for name, inside, between in (
            ("A100", "NVLink 3", "network 200 Gb/s"),
            ("H100", "NVLink 4", "network 400 Gb/s"),
            ("H200", "NVLink 4", "network 400 Gb/s"),
        )
    }
    | {
        "H100 pods": Cluster(
            DEVICES["H100"],
            (LINKS["NVLink 4"], LINKS["network 400 Gb/s"], LINKS["network 400 Gb/s, 1:7"]),
            per_pod=384,
            name="H100 pods",
        )
    }
)
"""Nodes of eight, by the name of their GPU; and pods of 3,072 H100, as Llama 3 was trained on."""
