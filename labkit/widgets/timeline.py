"""The course's one picture: what every rank did, and when.

In a notebook it is a canvas that zooms, pans and tells each event by pointer and keyboard
(``timeline.js``); everywhere else it is a still (PNG), and in plain text one deterministic line.
Events travel to the browser once; zoom and focus live there, only the chosen step comes back.
"""

from __future__ import annotations

import base64
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anywidget
import traitlets

from labkit.widgets import still
from labkit.widgets.buffer import pack
from labkit.widgets.picture import Picture, build
from labkit.widgets.window import window

if TYPE_CHECKING:
    from os import PathLike

    from labkit.trace.events import Trace

_HERE = Path(__file__).parent
# A widget's code travels as one module, so these are joined; each uses the names of those before.
_FRONT = (
    "front/words.js",
    "front/events.js",
    "front/page.js",
    "front/layout.js",
    "front/marks.js",
    "front/painter.js",
    "front/table.js",
    "timeline.js",
)


class Timeline(anywidget.AnyWidget):
    """A timeline of `trace`.

    Parameters
    ----------
    trace : a recording, or the result of a schedule or a model
    step : show this step first; None shows all. The selector in the picture sets it too
    title : a line above the picture

    Raises
    ------
    KeyError : the trace has no such step
    """

    _esm = "\n".join((_HERE / name).read_text(encoding="utf-8") for name in _FRONT)
    _css = _HERE / "timeline.css"

    data = traitlets.Bytes().tag(sync=True)
    title = traitlets.Unicode().tag(sync=True)
    step = traitlets.Int(None, allow_none=True).tag(sync=True)

    def __init__(self, trace: Trace, *, step: int | None = None, title: str = "") -> None:
        self.trace = trace
        self._known = tuple(s.index for s in trace.steps)
        if step is not None and step not in self._known:
            raise KeyError(self._no_step(step))
        self._stills: dict[tuple[int | None, str], bytes] = {}
        super().__init__(data=pack(trace, self._picture), step=step, title=title)

    @cached_property
    def _picture(self) -> Picture:
        return build(self.trace)

    def _no_step(self, step: int) -> str:
        known = ", ".join(map(str, self._known)) or "none"
        return f"no step {step} in this trace (steps: {known})"

    @traitlets.validate("step")
    def _check_step(self, proposal: Any) -> int | None:
        step: int | None = proposal["value"]
        if step is not None and step not in self._known:
            raise traitlets.TraitError(self._no_step(step))
        return step

    def still(self) -> bytes:
        """The picture of the chosen step as a PNG, 1,000 pixels wide at 1.5 pixels a pixel."""
        key = (self.step, self.title)
        if key not in self._stills:
            shown = window(self.trace, self._picture, self.step)
            self._stills[key] = still.draw(
                self._picture, self.trace.about, self._heading(), shown, self.trace.steps
            )
        return self._stills[key]

    def _heading(self) -> str:
        if self.step is None:
            return self.title
        return f"{self.title}, step {self.step}" if self.title else f"step {self.step}"

    def save_png(self, path: str | PathLike[str]) -> None:
        """Write `still` to a file."""
        Path(path).write_bytes(self.still())

    def __repr__(self) -> str:
        about = self.trace.about
        words = [f"ranks={about.ranks}", about.clock]
        if about.clock == "modelled":  # other clocks tell another time on every run
            start, end = self._picture.extent
            words.append(f"makespan={end - start if len(self.trace) else 0:.6g}")
        return f"Timeline({', '.join(words)})"

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
        bundle = super()._repr_mimebundle_(**kwargs)
        if bundle is None:
            return None
        data, metadata = bundle
        png = base64.b64encode(self.still()).decode()
        return (
            {**data, "text/plain": repr(self), "image/png": png},
            {**metadata, "image/png": {"width": still.WIDTH}},
        )
