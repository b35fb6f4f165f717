from __future__ import annotations

from labkit.trace import Group
from labkit.widgets.bars import every
from labkit.widgets.panel import Panel
from labkit.widgets.picture import build
from labkit.widgets.still import draw
from labkit.widgets.window import window
from tests.widgets.traces import trace_of


def test_arrows_are_thinned_only_above_three_thousand() -> None:
    assert [every(n) for n in (0, 1, 3000, 3001, 6001)] == [1, 1, 1, 2, 3]


def test_a_still_that_leaves_arrows_out_says_so() -> None:
    shared = {"group": Group("0", "default", (0, 1)), "tag": 0, "done": 9, "bytes": 1}
    ends = {"send": (0, 1), "recv": (1, 0)}
    rows = [
        {"rank": rank, "kind": kind, "name": kind, "peer": peer, "start": n, "end": n, "seq": n}
        | shared
        for n in range(3001)
        for kind, (rank, peer) in ends.items()
    ]
    few, many = (trace_of(rows[:n]) for n in (20, 6002))
    for trace, said in ((few, 0), (many, 1)):
        picture = build(trace)
        panel = Panel(picture, trace.about, "", window(trace, picture))
        assert sum("one has its arrow" in line for line in panel.said) == said
    assert draw(panel)
