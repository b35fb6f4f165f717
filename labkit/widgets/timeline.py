"""The course's one picture: what every rank did, and when.

In a notebook it is a canvas that zooms, pans and tells each event by pointer and keyboard
(``timeline.js``); everywhere else it is a still (PNG), and in plain text one deterministic line.
A trace's rows travel to the browser once; zoom and focus live there. With a cluster, the kernel
retimes the trace when the clock is switched or a slider moved, and only times travel again.
"""

from __future__ import annotations

import math
import threading
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anywidget
import numpy as np
import traitlets

from labkit.widgets import still
from labkit.widgets.buffer import pack_rows
from labkit.widgets.joined import joined
from labkit.widgets.picture import build
from labkit.widgets.retiming import Figures, Retiming, figures
from labkit.widgets.rows import at_once
from labkit.widgets.scene import Scene
from labkit.widgets.sketch import sketch

if TYPE_CHECKING:
    from os import PathLike

    from numpy.typing import NDArray

    from labkit.trace.events import Trace
    from labkit.trace.hardware import Cluster
    from labkit.widgets.sketch import Sketch

# Each uses the names of those before.
_FRONT = (
    "front/words.js",
    "front/events.js",
    "front/page.js",
    "front/layout.js",
    "front/marks.js",
    "front/painter.js",
    "front/over.js",
    "front/table.js",
    "front/pane.js",
    "front/controls.js",
    "timeline.js",
)


class Timeline(anywidget.AnyWidget):
    """A timeline of `trace`.

    The traits `clock`, `latency`, `bandwidth`, `step`, `path` and `title` can be set; the controls
    in the picture set them too.

    Parameters
    ----------
    trace : a recording, or the result of a schedule or a model
    step : show this step first; None shows all. The selector in the picture sets it too
    title : a line above the picture
    cluster : offer the trace retimed on this cluster too, with sliders for its links
    compute : where the retimed durations come from, as `Trace.retime` takes it
    clock : show this one first: the trace's own, or "modelled" (needs `cluster`). None: its own
    prediction : a trace, or seconds that a step was predicted to take; drawn over the trace
    below : a second trace, drawn under the first on the same scale of time
    titles : what the two are called
    path : highlight the critical path
    how : further arguments of `Trace.retime`: ``efficiency=0.5``

    Raises
    ------
    KeyError : the trace has no such step
    TypeError, ValueError : an argument is not what it has to be, or, with ``clock="modelled"``,
        the trace could not have happened
    """

    _esm = joined(*_FRONT)
    _css = joined("front/theme.css", "timeline.css")

    rows = traitlets.Bytes().tag(sync=True)
    bars = traitlets.Bytes().tag(sync=True)
    rows_below = traitlets.Bytes().tag(sync=True)
    bars_below = traitlets.Bytes().tag(sync=True)
    title = traitlets.Unicode().tag(sync=True)
    titles = traitlets.List(traitlets.Unicode()).tag(sync=True)
    step = traitlets.Int(None, allow_none=True).tag(sync=True)
    clock = traitlets.Unicode().tag(sync=True)
    latency = traitlets.Any(()).tag(sync=True)
    bandwidth = traitlets.Any(()).tag(
        sync=True, to_json=lambda value, _: [None if math.isinf(v) else v for v in value]
    )
    path = traitlets.Bool(False).tag(sync=True)
    controls = traitlets.Dict().tag(sync=True)  # what there is to switch and to move
    problem = traitlets.Unicode().tag(sync=True)  # why the last change could not be shown

    def __init__(
        self,
        trace: Trace,
        *,
        step: int | None = None,
        title: str = "",
        cluster: Cluster | None = None,
        compute: str = "flops",
        clock: str | None = None,
        prediction: Trace | float | None = None,
        below: Trace | None = None,
        titles: tuple[str, str] | None = None,
        path: bool = False,
        **how: Any,
    ) -> None:
        self.trace = trace
        self._known = tuple(s.index for s in trace.steps)
        if step is not None and step not in self._known:
            raise KeyError(self._no_step(step))
        if how and cluster is None:
            raise TypeError(f"{', '.join(how)}: only of use with cluster=")
        own = trace.about.clock
        self._retiming = None if cluster is None else Retiming(trace, cluster, compute, how)
        # A model on another cluster is still a model: there is nothing to switch to.
        self._clocks = (own,) if cluster is None else tuple(dict.fromkeys((own, "modelled")))
        clock = self._clocks[0] if clock is None else clock
        if clock not in self._clocks:
            raise ValueError(self._no_clock(clock))
        self._prediction, self._below = prediction, below
        self._turn = threading.RLock()  # messages of the front end may come on another thread
        self._stills: dict[tuple[Any, ...], bytes] = {}
        self._wanted: tuple[Any, ...] = ()
        self._least: NDArray[np.int64] | None = None
        links: dict[str, Any] = {}
        if self._retiming is not None:
            links = {"latency": self._retiming.latency, "bandwidth": self._retiming.bandwidth}
        if below is not None:
            links |= {
                "rows_below": pack_rows(below, sketch(below)),
                "bars_below": Scene.of(below, sketch(below)).packed(),
                "titles": list(titles or ("", "")),
            }
        elif titles is not None:
            raise TypeError(f"titles={titles!r}: only of use with below=")
        self._scene: Scene | None = None
        super().__init__(
            rows=pack_rows(trace, self._sketch), step=step, title=title, clock=clock,
            path=path, controls=self._described(), **links,
        )  # fmt: skip
        self._wanted = self._wish()
        self._show(self._look())

    @classmethod
    def compare(
        cls, above: Trace, below: Trace, titles: tuple[str, str] = ("", ""), **options: Any
    ) -> Timeline:
        """Two runs one above the other, on one scale of time; `options` as for one."""
        return cls(above, below=below, titles=titles, **options)

    @cached_property
    def _sketch(self) -> Sketch:
        return sketch(self.trace)

    def _no_step(self, step: int) -> str:
        known = ", ".join(map(str, self._known)) or "none"
        return f"no step {step} in this trace (steps: {known})"

    def _no_clock(self, clock: str) -> str:
        more = "" if self._retiming else "; give cluster= for a modelled one"
        return f"clock={clock!r}: this timeline has {' and '.join(self._clocks)}{more}"

    def _described(self) -> dict[str, Any]:
        """What the front end builds its controls from."""
        if self._retiming is None:
            return {}
        steps = [[s.index, s.duration] for s in self.trace.steps]
        return {
            "clocks": list(self._clocks), "cluster": self._retiming.cluster.name,
            "links": self._retiming.described(), "steps": steps,
        }  # fmt: skip

    @traitlets.validate("step")
    def _check_step(self, proposal: Any) -> int | None:
        step: int | None = proposal["value"]
        if step is not None and step not in self._known:
            raise traitlets.TraitError(self._no_step(step))
        return step

    @traitlets.validate("clock")
    def _check_clock(self, proposal: Any) -> str:
        clock: str = proposal["value"]
        if clock not in self._clocks:
            raise traitlets.TraitError(self._no_clock(clock))
        return clock

    @traitlets.validate("latency", "bandwidth")
    def _check_figures(self, proposal: Any) -> Figures:
        name = proposal["trait"].name
        if self._retiming is None:
            raise traitlets.TraitError(f"{name}: this timeline has no cluster; give cluster=")
        try:
            return figures(proposal["value"], name, len(self._retiming.levels))
        except ValueError as error:
            raise traitlets.TraitError(str(error)) from None

    # What is shown.

    @property
    def modelled(self) -> Trace:
        """The trace on the cluster, with the links as they are set now.

        Raises
        ------
        ValueError : there is no cluster, or the trace could not have happened
        """
        if self._retiming is None:
            raise ValueError("nothing is modelled here: give cluster= to the timeline")
        with self._turn:
            scene = self._scene
            if scene is not None and self._wanted[:3] == ("modelled", self.latency, self.bandwidth):
                return scene.trace
            return self._retiming.on(self.latency, self.bandwidth)

    def _wish(self) -> tuple[Any, ...]:
        return (
            self.clock, self.latency, self.bandwidth, self.path, self.step if self.path else None
        )  # fmt: skip

    def _look(self) -> Scene:
        """The scene that the traits ask for."""
        shown = self.trace
        if self._retiming is not None and self.clock == "modelled":
            shown = self._retiming.on(self.latency, self.bandwidth)
        return Scene.of(shown, self._sketch, self._prediction, self.path, self.step)

    def _show(self, scene: Scene) -> None:
        ranks = self.trace.about.ranks
        used = at_once(scene.picture, ranks)
        before = self._scene
        if before is None or before.trace.about.clock != scene.trace.about.clock:
            self._least = None
        self._least = used if self._least is None else np.maximum(used, self._least)
        self._scene = scene
        self._stills.clear()
        self.bars = scene.packed(self._least)

    @traitlets.observe("clock", "latency", "bandwidth", "path", "step")
    def _change(self, change: Any) -> None:
        """Show what is asked for now; whoever comes late finds it shown already."""
        with self._turn:
            if self._scene is None or self._wish() == self._wanted:
                return
            moved = self._wish()[1:3] != self._wanted[1:3]
            if moved and self.clock != "modelled":
                self.clock = "modelled"  # comes back here
                return
            self._wanted = self._wish()
            try:
                scene = self._look()
            except (ValueError, KeyError) as error:
                self.problem = str(error)
                self._step_back()
                return
            self.problem = ""
            self._show(scene)

    def _step_back(self) -> None:
        """Undo a wish that cannot be shown, so that no word stands over another's picture."""
        scene, self._scene = self._scene, None  # until then changes are not looked at
        assert scene is not None
        self.path = scene.path is not None
        self.clock = scene.trace.about.clock
        self._scene, self._wanted = scene, self._wish()

    def still(self) -> bytes:
        """The picture as it is shown, as a PNG, 1,000 pixels wide at 1.5 pixels a pixel."""
        with self._turn:
            scene = self._scene
            assert scene is not None
            key = (self.step, self.title)
            if key not in self._stills:
                top, *rest = self.titles or [""]
                two = self._below is not None
                panels = [scene.panel(self.step, self._heading(top), two)]
                if self._below is not None:
                    other = Scene.of(self._below, sketch(self._below))
                    panels.append(other.panel(self.step, rest[0], two))
                self._stills[key] = still.draw(*panels)
            return self._stills[key]

    def _heading(self, title: str) -> str:
        step = "" if self.step is None else f"step {self.step}"
        return ", ".join(filter(None, (self.title, title, step)))

    def save_png(self, path: str | PathLike[str]) -> None:
        """Write `still` to a file."""
        Path(path).write_bytes(self.still())

    def __repr__(self) -> str:
        scene = self._scene
        assert scene is not None
        words = _words(scene.trace)
        if self._below is not None:
            words += f", above {_words(self._below)}"
        return f"Timeline({words})"

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
        return still.beside(super()._repr_mimebundle_(**kwargs), repr(self), self.still)


def _words(trace: Trace) -> str:
    """Ranks and clock, and of a model its makespan: other clocks tell another on every run."""
    words = [f"ranks={trace.about.ranks}", trace.about.clock]
    if trace.about.clock == "modelled":
        start, end = build(trace).extent
        words.append(f"makespan={end - start if len(trace) else 0:.6g}")
    return ", ".join(words)
