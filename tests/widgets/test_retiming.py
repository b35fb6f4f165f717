from __future__ import annotations

import math

import pytest

from labkit.trace import CLUSTERS, DEVICES, Cluster, Group, Link
from labkit.widgets.retiming import Retiming, figures
from tests.widgets.traces import data_parallel, pipeline, trace_of

INSIDE, BETWEEN = Link(5e-6, 50e9, "NVLink", base=2e-6), Link(5e-5, 1e9, "network")
PAIRS = Cluster(DEVICES["H100"], (INSIDE, BETWEEN), per_node=2, name="pairs")


def test_the_figures_are_those_of_the_links_that_are_crossed() -> None:
    inside = Retiming(data_parallel(ranks=2), PAIRS, "cpu")
    assert (inside.latency, inside.bandwidth) == ((5e-6,), (50e9,))
    both = Retiming(data_parallel(ranks=4), PAIRS, "cpu")
    assert (both.latency, both.bandwidth) == ((5e-6, 5e-5), (50e9, 1e9))


def test_messages_cross_links_too() -> None:
    assert Retiming(pipeline(stages=4), PAIRS).levels == (0, 1)
    pair = Group("0", "default", (0, 2))
    row = {"rank": 0, "kind": "send", "name": "send", "start": 0, "end": 0, "peer": 2}
    assert Retiming(trace_of([row | {"group": pair}]), PAIRS).levels == (1,)


def test_two_equal_links_are_two_levels() -> None:
    twice = Cluster(DEVICES["H100"], (INSIDE, INSIDE), per_node=2)
    assert Retiming(data_parallel(ranks=4), twice).levels == (0, 1)


def test_a_trace_without_operations_has_nothing_to_move() -> None:
    row = {"rank": 0, "kind": "compute", "name": "f", "start": 0, "end": 1}
    assert Retiming(trace_of([row]), PAIRS).levels == ()


def test_a_group_counted_larger_may_cross_every_link() -> None:
    few = data_parallel(ranks=2)
    assert Retiming(few, PAIRS, "cpu", {"group_size": {"default_pg": 64}}).levels == (0, 1)


def test_unchanged_links_give_the_clusters_own_trace() -> None:
    trace = data_parallel()
    retiming = Retiming(trace, PAIRS, "cpu")
    own = retiming.on(retiming.latency, retiming.bandwidth)
    assert own.about == trace.retime(PAIRS, "cpu").about
    assert "NVLink" in own.about.note


def test_a_changed_link_retimes_and_loses_its_name() -> None:
    trace = data_parallel()
    retiming = Retiming(trace, PAIRS, "cpu")
    slow = retiming.on((5e-6, 1e-3), (50e9, 1e9))
    own = Cluster(PAIRS.device, (INSIDE, Link(1e-3, 1e9)), per_node=2, name="pairs")
    assert slow.columns["end"].tolist() == trace.retime(own, "cpu").columns["end"].tolist()
    assert "NVLink" in slow.about.note
    assert "network" not in slow.about.note
    assert "1.00 ms, 1 GB/s" in slow.about.note


def test_what_an_operation_costs_besides_its_steps_stays() -> None:
    trace = data_parallel(ranks=2)
    free = Retiming(trace, PAIRS, "cpu").on((0.0,), (math.inf,))
    summary = free.step(0).columns
    done = summary["done"] - summary["start"]
    assert min(done[done == done]) == pytest.approx(2e-6)  # INSIDE.base


def test_the_front_end_is_told_places_names_and_figures() -> None:
    inside, between = Retiming(data_parallel(), PAIRS, "cpu").described()
    assert (inside["place"], inside["name"], inside["base"]) == ("inside a node", "NVLink", 2e-6)
    assert (between["place"], between["given"]) == ("between nodes", [5e-5, 1e9])
    endless = Cluster(DEVICES["H100"], Link(0.0, math.inf))
    (only,) = Retiming(data_parallel(), endless, "cpu").described()
    assert (only["place"], only["given"]) == ("between ranks", [0.0, None])


def test_what_is_no_cluster_is_refused() -> None:
    with pytest.raises(TypeError, match=r"cluster='H100': give a Cluster"):
        Retiming(data_parallel(), "H100")
    assert Retiming(data_parallel(), CLUSTERS["H100"]).levels == (0,)


def test_a_number_is_for_all_links_and_none_is_no_limit() -> None:
    assert figures(1e-6, "latency", 2) == (1e-6, 1e-6)
    assert figures([1, None], "bandwidth", 2) == (1.0, math.inf)


@pytest.mark.parametrize(
    ("value", "name", "said"),
    [
        ((1e-6,), "latency", "give one number, or 2"),
        (-1e-6, "latency", "give seconds, 0 or more"),
        (math.inf, "latency", "give seconds, 0 or more"),
        (0, "bandwidth", "above 0"),
        ("fast", "bandwidth", "give numbers"),
        (math.nan, "latency", "give numbers"),
        (True, "latency", "give numbers"),
    ],
)
def test_other_figures_are_refused(value: object, name: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        figures(value, name, 2)
