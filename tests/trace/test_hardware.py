"""Devices, links, clusters: which link joins whom, and what a ring costs on it."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import pytest

from labkit.trace import CLUSTERS, DEVICES, LINKS, Cluster, Device, Link, this_machine
from labkit.trace.hardware import ring
from labkit.trace.traffic import closed_form

NEAR, FAR, FARTHEST = Link(1, 100, "near"), Link(10, 10, "far"), Link(100, 1, "farthest")
DEVICE = Device("one's own", {"float32": 1e12})


def test_the_published_figures() -> None:
    # BF16 dense TFLOP/s, best matrix product, HBM in GB and TB/s, NVLink and network in GB/s.
    table = {
        "A100": (312, 271, 80, 2.0, 300, 25),
        "H100": (989, 795, 80, 3.35, 450, 50),
        "H200": (989, None, 141, 4.8, 450, 50),
        "B200": (2250, None, 180, 8.0, None, None),
    }
    assert set(DEVICES) == set(table)
    for name, (peak, matmul, memory, rate, inside, between) in table.items():
        device = DEVICES[name]
        assert device.peak["bfloat16"] == peak * 1e12
        assert device.achieved.get("bfloat16") == (matmul and matmul * 1e12)
        assert (device.memory, device.bandwidth) == (memory * 1e9, rate * 1e12)
        assert device.source
        if inside is not None:
            links = CLUSTERS[name].links
            assert [link.bandwidth for link in links] == [inside * 1e9, between * 1e9]
    assert DEVICES["H100"].peak["float8"] == 1979e12
    assert LINKS["NVLink 5"].bandwidth == 900e9
    assert all(link.source and link.base == 6.6e-6 for link in LINKS.values())
    assert {link.latency for link in LINKS.values()} == {0.6e-6, 2.7e-6}
    assert CLUSTERS["H100"].per_node == 8
    pods = CLUSTERS["H100 pods"]
    assert pods.per_node * (pods.per_pod or 0) == 3072
    assert pods.link(0, 3072).bandwidth == pytest.approx(50e9 / 7)


def test_a_rate_is_the_one_measured_or_a_stated_share_of_the_peak() -> None:
    h100 = DEVICES["H100"]
    assert h100.flops() == pytest.approx(795e12, rel=1e-12)
    assert h100.flops(efficiency=0.5) == 0.5 * 989e12
    assert h100.flops("float8", 0.5) == 0.5 * 1979e12
    with pytest.raises(ValueError, match=r"H100: no matrix product in float8 was measured"):
        h100.flops("float8")
    with pytest.raises(ValueError, match=r"H200: no matrix product in bfloat16"):
        DEVICES["H200"].flops()
    with pytest.raises(ValueError, match=r"no peak for dtype='int3' \(bfloat16, float8\)"):
        h100.flops("int3", 0.5)


@pytest.mark.parametrize(
    ("a", "b", "link"),
    [(0, 1, NEAR), (0, 3, NEAR), (3, 4, FAR), (0, 11, FAR), (11, 12, FARTHEST), (0, 99, FARTHEST)],
)
def test_which_link_joins_two_ranks(a: int, b: int, link: Link) -> None:
    cluster = Cluster(DEVICE, (NEAR, FAR, FARTHEST), per_node=4, per_pod=3)
    assert cluster.link(a, b) is cluster.link(b, a) is link


def test_the_last_link_serves_what_lies_further_out() -> None:
    assert Cluster(DEVICE, NEAR, per_node=2).link(0, 100) is NEAR
    assert Cluster(DEVICE, [NEAR, FAR], per_node=2).link(0, 100) is FAR


def test_a_ring_crosses_the_links_between_neighbours() -> None:
    cluster = Cluster(DEVICE, (NEAR, FAR), per_node=4)
    assert cluster.crossed(range(4)) == (NEAR,)
    assert cluster.crossed(range(8)) == (NEAR, FAR)
    assert cluster.crossed((0, 4, 8)) == (FAR,)  # one rank a node: never inside one
    assert cluster.crossed((5,)) == ()


@pytest.mark.parametrize(
    ("operation", "payload", "steps", "size"),
    [
        ("all_reduce", 800, 6, 1200), ("reduce_scatter", 800, 3, 600), ("all_to_all", 800, 3, 600),
        ("all_gather", 200, 3, 600), ("broadcast", 800, 3, 800), ("reduce", 800, 3, 800),
        ("gather", 200, 1, 600), ("scatter", 800, 1, 600), ("barrier", 0, 6, 0),
    ],
)  # fmt: skip
def test_what_collectives_cost_on_four_ranks(
    operation: str, payload: float, steps: int, size: float
) -> None:
    cluster = Cluster(DEVICE, Link(2, 100, base=50))
    assert cluster.collective(operation, payload, range(4)) == 50 + 2 * steps + size / 100
    assert size == closed_form(operation, payload, 4, at_root=True)
    assert cluster.collective(operation, payload, [3]) == 0


def test_a_collective_takes_as_long_as_its_slowest_link() -> None:
    cluster = Cluster(DEVICE, (NEAR, FAR), per_node=4)
    assert cluster.collective("all_reduce", 80, range(4)) == 6 * 1 + 120 / 100
    assert cluster.collective("all_reduce", 80, range(8)) == 14 * 10 + 140 / 10
    # Where the outer link is the faster one, the inner one still holds the ring up.
    odd = Cluster(DEVICE, (FAR, NEAR), per_node=4)
    assert odd.collective("all_reduce", 80, range(8)) == 14 * 10 + 140 / 10


def test_a_message_costs_one_step() -> None:
    cluster = Cluster(DEVICE, (NEAR, FAR), per_node=4)
    assert cluster.message(50, 0, 1) == 1 + 0.5
    assert cluster.message(50, 0, 4) == 10 + 5


def test_an_operation_that_nobody_knows() -> None:
    with pytest.raises(ValueError, match="no cost is known for 'all_reduse'; known: all_gather"):
        ring("all_reduse", 4)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Link(-1, 1, "wire"), r"link 'wire': latency=-1: give seconds"),
        (lambda: Link(math.nan, 1), r"link: latency=nan"),
        (lambda: Link(math.inf, 1), r"latency=inf"),
        (lambda: Link(0, 0), r"bandwidth=0: give bytes a second, above 0"),
        (lambda: Link(0, -3), r"bandwidth=-3"),
        (lambda: Link(0, 1, base=-2), r"base=-2"),
        (lambda: Device("d", {}), r"device 'd': peak is empty"),
        (lambda: Device("d", {"float32": 0}), r"peak\['float32'\]=0: give a number above 0"),
        (lambda: Device("d", {"x": 1}, {"x": math.nan}), r"achieved\['x'\]=nan"),
        (lambda: Device("d", {"x": 1}, memory=-1), r"memory=-1"),
        (lambda: Device("d", {"x": 1}, bandwidth=0), r"bandwidth=0"),
        (lambda: Cluster(DEVICE, NEAR, per_node=0), r"per_node=0: a node has at least 1"),
        (lambda: Cluster(DEVICE, ()), r"links: 0 given"),
        (lambda: Cluster(DEVICE, [NEAR] * 4), r"links: 4 given"),
        (lambda: Cluster(DEVICE, [NEAR] * 3), r"per_pod=None with 3 links"),
        (lambda: Cluster(DEVICE, [NEAR] * 2, per_pod=2), r"per_pod=2 with 2 links"),
        (lambda: Cluster(DEVICE, [NEAR] * 3, per_pod=0), r"per_pod=0"),
        (lambda: this_machine(1e-5, 0, 1e9), r"'between ranks': bandwidth=0"),
        (lambda: this_machine(1e-5, 1e9, -1), r"peak\['float32'\]=-1"),
    ],
)
def test_values_that_cannot_be(make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_this_machine_is_what_was_measured_on_it() -> None:
    here = this_machine(latency=2e-5, bandwidth=1e9, flops=5e10)
    assert here.device.dtype() == "float32"
    assert here.device.flops() == 5e10
    assert here.message(1e9, 0, 3) == 1 + 2e-5
    assert "measured" in here.links[0].source


def test_clusters_are_values() -> None:
    h100 = CLUSTERS["H100"]
    assert pickle.loads(pickle.dumps(h100)) == copy.deepcopy(h100) == h100
    assert len({h100, CLUSTERS["A100"], copy.deepcopy(h100)}) == 2
    with pytest.raises(AttributeError):
        h100.per_node = 3
