from __future__ import annotations

import pytest

from labkit.widgets.palette import INDEX, OTHER, STANDING, STYLES, of_compute


def luminance(colour: str) -> float:
    """Relative luminance as WCAG defines it."""
    channels = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_measured_as_wcag_does() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("style", STYLES, ids=lambda style: style.key)
def test_text_on_every_fill_can_be_read(style) -> None:
    assert contrast(style.colour, style.ink) >= 4.5
    if style.dark:  # on a dark page, under white text
        assert contrast(style.dark, "#ffffff") >= 4.5


def test_grey_is_never_the_brightest_on_a_dark_page() -> None:
    grey = [style.dark for style in STYLES if style.key in ("other compute", *STANDING)]
    assert all(luminance(dark) < luminance("#808080") for dark in grey)


def test_no_two_kinds_differ_by_colour_alone() -> None:
    marks = [(style.letter, style.hatch) for style in STYLES]
    assert len(set(marks)) == len(marks)
    assert len({style.key for style in STYLES}) == len(STYLES)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("forward", "forward"),
        ("Forward", "forward"),
        ("forward 3", "forward"),
        ("forward block.2", "forward"),
        ("fwd", "forward"),
        ("2F0", "forward"),
        ("F", "forward"),
        ("backward", "backward"),
        ("0B2", "backward"),
        ("input-gradient", "input-gradient"),
        ("backward_input", "input-gradient"),
        ("1I3", "input-gradient"),
        ("weight_grad", "weight-gradient"),
        ("W", "weight-gradient"),
        ("optimizer", "optimizer"),
        ("optimizer.step", "optimizer"),
        ("compute", "other compute"),
        ("feed forward", "other compute"),
        ("forwarding", "other compute"),
        ("Fourier", "other compute"),
        ("", "other compute"),
    ],
)
def test_compute_is_coloured_by_the_name_of_its_span(name: str, key: str) -> None:
    assert of_compute(name) == INDEX[key]


def test_what_is_not_known_is_other_compute() -> None:
    assert STYLES[OTHER].key == "other compute"
