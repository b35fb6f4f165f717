"""The memory bar: what it takes, what it says, and its still."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

import labkit
from labkit.runtime.budget import Overrun
from labkit.trace import About, Trace
from labkit.trace.log import Log, merge
from labkit.trace.memory import Held, write
from labkit.widgets import MemoryBar
from labkit.widgets.palette import MEMORY

FULL = [Held(rank, 5_757_696, 5_757_696, 11_515_556, 0) for rank in range(4)]


def trace_of(*held: Held) -> Trace:
    records = []
    for one in held:
        log = Log(one.rank)
        write(log, one)
        records.append(log.finish())
    return merge(records, About(ranks=len(held)))


def test_exact_bytes_are_in_the_repr_and_ranks_that_are_alike_are_told_once() -> None:
    bar = MemoryBar(FULL, budget=20_000_000)
    assert repr(bar) == (
        "MemoryBar(ranks 0 to 3: weights=5,757,696, gradients=5,757,696, optimizer=11,515,556, "
        "activations=0; budget=20,000,000)"
    )
    assert repr(MemoryBar(Held(1, 5))) == (
        "MemoryBar(rank 1: weights=5, gradients=0, optimizer=0, activations=0)"
    )
    assert repr(MemoryBar([Held(0, 5), Held(1, 6)])).count("weights") == 2


@pytest.mark.parametrize(
    ("source", "budget", "words"),
    [
        (FULL, 20_000_000, "Ranks 0 to 3 hold 23 MB each, 3.03 MB more than the budget of 20 MB."),
        (FULL[0], 64_000_000, "Rank 0 holds 23 MB of the budget of 64 MB: 41 MB are left."),
        (FULL[0], None, "Rank 0 holds 23 MB."),
        (
            {"FP32": FULL[0], "mixed": Held(0, 1000)},
            None,
            "FP32 holds 23 MB. mixed holds 1 kB.",
        ),
        (
            [Held(rank, 1000 * (rank + 1)) for rank in range(6)],
            3500,
            "Most of 6: rank 5 holds 6 kB, 2.5 kB more than the budget of 3.5 kB. "
            "Least: rank 0 holds 1 kB of the budget of 3.5 kB: 2.5 kB are left.",
        ),
    ],
)
def test_the_picture_is_said_in_words(source: Any, budget: int | None, words: str) -> None:
    assert MemoryBar(source, budget=budget).words == words


def test_a_trace_is_shown_at_its_peak_or_in_one_step() -> None:
    trace = trace_of(*FULL)
    assert MemoryBar(trace).rows == MemoryBar(FULL).rows
    assert MemoryBar(trace, step=0).rows == MemoryBar(FULL).rows
    with pytest.raises(KeyError, match="no step 3"):
        MemoryBar(trace, step=3)


def test_an_error_brings_its_ranks_and_its_budget() -> None:
    error = labkit.OutOfMemory(Overrun(FULL[0], 20_000_000, "at a step"), tuple(FULL))
    bar = MemoryBar(error)
    assert bar.budget == 20_000_000
    assert [label for label, _ in bar.rows] == ["rank 0", "rank 1", "rank 2", "rank 3"]
    assert MemoryBar(error, budget=5).budget == 5


@pytest.mark.usefixtures("no_process_left")
def test_a_run_brings_what_it_measured_and_its_budget() -> None:
    def work() -> None:
        import torch

        torch.nn.Linear(10, 10, bias=False)(torch.ones(1, 10))

    run = labkit.launch(work, ranks=2, backend="gloo", memory="1 kB")
    assert repr(MemoryBar(run)) == (
        "MemoryBar(rank 0, rank 1: weights=400, gradients=0, optimizer=0, activations=40; "
        "budget=1,000)"
    )
    plain = labkit.launch(work, ranks=1, backend="gloo")
    with pytest.raises(ValueError, match="no memory marks: launch the run with memory="):
        MemoryBar(plain)


def test_labels_compare_and_ranks_that_differ_get_a_bar_each() -> None:
    bar = MemoryBar({"full": FULL, "sharded": [Held(0, 5), Held(1, 6)]})
    assert [label for label, _ in bar.rows] == ["full", "sharded, rank 0", "sharded, rank 1"]
    assert bar.budget is None


def test_compared_errors_share_a_budget_only_where_they_agree() -> None:
    one, other = (labkit.OutOfMemory(Overrun(FULL[0], size, "at a step")) for size in (1000, 2000))
    assert MemoryBar({"a": one, "b": one}).budget == 1000
    assert MemoryBar({"a": one, "b": other}).budget is None


@pytest.mark.parametrize(
    ("source", "options", "error", "words"),
    [
        ([], {}, ValueError, "nothing to show"),
        ({}, {}, ValueError, "nothing to show"),
        (7, {}, TypeError, "not int"),
        ("FP32", {}, TypeError, "not str"),
        ([1, 2], {}, TypeError, "not list"),
        (Held(0, 1), {"budget": 0}, ValueError, "budget=0"),
        (Held(0, 1), {"budget": "64 MB"}, TypeError, "budget='64 MB': give a whole number"),
    ],
)
def test_what_cannot_be_shown_is_refused(source: Any, options: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        MemoryBar(source, **options)


def test_a_notebook_gets_the_widget_the_still_and_the_text(tmp_path: Path) -> None:
    bar = MemoryBar(FULL, budget=20_000_000, title="Four ranks")
    bundle = bar._repr_mimebundle_()
    assert bundle is not None
    data, metadata = bundle
    assert data["text/plain"] == repr(bar)
    assert base64.b64decode(data["image/png"]) == bar.still()
    assert "application/vnd.jupyter.widget-view+json" in data
    assert metadata["image/png"] == {"width": 1000}
    bar.save_png(tmp_path / "bar.png")
    assert (tmp_path / "bar.png").read_bytes() == bar.still()


def test_the_still_is_drawn_once_a_title_and_alike_each_time() -> None:
    bar = MemoryBar(FULL, budget=20_000_000)
    first = bar.still()
    assert bar.still() is first
    assert MemoryBar(FULL, budget=20_000_000).still() == first
    bar.title = "now with a title"
    assert bar.still() != first


@pytest.mark.parametrize(
    "held", [Held(0), Held(0, 1), Held(0, 0, 0, 0, 10**13), Held(0, 10**9, 1, 1, 1)]
)
def test_odd_sizes_are_drawn_too(held: Held) -> None:
    assert MemoryBar({"$a label with \\math$ " * 5: held}, budget=3).still().startswith(b"\x89PNG")


def test_each_part_has_a_sign_besides_its_colour_and_ink_that_can_be_read() -> None:
    from tests.widgets.test_palette import contrast

    assert [style.key for style in MEMORY] == list(FULL[0].parts)
    assert len({style.letter for style in MEMORY}) == 4
    assert len({style.hatch for style in MEMORY}) == 4
    assert all(contrast(style.colour, style.ink) >= 4.5 for style in MEMORY)
