"""The one visual language of every picture: a colour, a hatch and a letter for each kind of work.

Colours are Okabe and Ito's eight, which people with colour-blindness can tell apart. Some have too
little contrast on white, so every bar is outlined and no meaning rests on colour alone: hatch and
letter say it again. Forward is cool, the backward's parts are warm, standing still is grey.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Style:
    """How one kind of work is drawn.

    Parameters
    ----------
    key : its name
    colour : fill, as ``#rrggbb``
    ink : colour of the text on the fill, at least 4.5:1 against it
    letter : short label for bars that have no room for a name
    hatch : "", or one of ``/ \\ x . -``
    dark : fill on a dark page, under white text; "": the same fill and ink
    said : what the legend says; "": the key
    """

    key: str
    colour: str
    ink: str = "#000000"
    letter: str = ""
    hatch: str = ""
    dark: str = ""
    said: str = ""

    @property
    def words(self) -> str:
        return self.said or self.key


STYLES = (
    Style("forward", "#56b4e9", letter="F"),
    Style("backward", "#e69f00", letter="B"),
    Style("input-gradient", "#d55e00", letter="I", hatch="/"),
    Style("weight-gradient", "#f0e442", letter="W", hatch="\\"),
    Style("optimizer", "#009e73", letter="O", hatch="-"),
    Style("other compute", "#d9d9d9", dark="#666666"),
    Style("send", "#0072b2", ink="#ffffff", letter="S"),
    Style("receive", "#a6cee3", letter="R", hatch="."),
    Style("collective", "#cc79a7", letter="C"),
    Style("skew", "#f2f2f2", hatch="/", dark="#3a3a3a", said="skew: waits for a rank"),
    Style("transfer", "#e4d6e0", hatch=".", dark="#4c3b47", said="transfer: waits for bytes"),
    Style("unsplit", "#f2f2f2", hatch="x", dark="#3a3a3a", said="stands still, for either"),
)
STANDING = ("skew", "transfer", "unsplit")  # keys
INDEX = {style.key: i for i, style in enumerate(STYLES)}
OTHER = INDEX["other compute"]

# What spans are called in the wild; single letters are the actions of pipeline schedules (2F0, W3).
_WORDS = (
    ("input-gradient", r"(?i:input[-_ ]?grad(ient)?s?|backward[-_ ]input|dgrad)|I"),
    ("weight-gradient", r"(?i:weight[-_ ]?grad(ient)?s?|backward[-_ ]weight|wgrad)|W"),
    ("forward", r"(?i:forward|fwd)|F"),
    ("backward", r"(?i:backward|bwd)|B"),
    ("optimizer", r"(?i:optimi[sz]er|optim|update)"),
)  # fmt: skip
_PATTERNS = tuple(
    (INDEX[key], re.compile(rf"\d*({words})\d*([\s:_./\[(-].*)?", re.DOTALL))
    for key, words in _WORDS
)


def of_compute(name: str) -> int:
    """The index into `STYLES` for compute inside a span called `name`."""
    return next((i for i, pattern in _PATTERNS if pattern.fullmatch(name)), OTHER)


# The parts of a rank's memory, in the order in which they are stacked. What the forward leaves and
# what the backward makes have the colours of these.
MEMORY = (
    Style("weights", "#0072b2", ink="#ffffff", letter="W"),
    Style("gradients", "#e69f00", letter="G", hatch="/"),
    Style("optimizer", "#009e73", letter="O", hatch="-"),
    Style("activations", "#56b4e9", letter="A", hatch="."),
)
