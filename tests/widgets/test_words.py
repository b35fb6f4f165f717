from __future__ import annotations

import pytest

from labkit.widgets.words import clock_note, in_bytes, scale_of
from tests.widgets.traces import data_parallel


@pytest.mark.parametrize(
    ("unit", "span", "word"), [("s", 3.0, "s"), ("s", 0.03, "ms"), ("s", 3e-5, "µs"), ("", 3, "")]
)
def test_the_axis_has_a_unit_that_reads_well(unit: str, span: float, word: str) -> None:
    assert scale_of(unit, span)[1] == word


def test_the_note_says_shared_cores_and_the_clocks_error() -> None:
    assert clock_note(data_parallel(cores=2).about) == "4 ranks share 2 cores"
    assert clock_note(data_parallel(cores=4).about) == ""
    about = data_parallel(cores=1, error=2e-6, note="links are not shared").about
    assert clock_note(about) == (
        "4 ranks share 1 core; clocks of two ranks agree to ±2 µs; links are not shared"
    )


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (4096, "4.1 kB"), (1 << 20, "1.05 MB"),
     (2.5e9, "2.5 GB")],
)  # fmt: skip
def test_bytes_are_written_in_decimal_units(size: float, text: str) -> None:
    assert in_bytes(size) == text
