"""A picture as two blocks of bytes: what never changes, and what times change.

`pack_rows` holds a trace's rows (names, partners, places), the same for all its retimings, and goes
to the browser once. `pack_bars` holds where the bars of a `Picture` lie and points at those rows;
it alone travels again when a slider retimes the trace or the clock is switched.

Layout of both: length of the header as a little-endian uint32, the header as JSON padded with
spaces to a multiple of 8 bytes, then the columns, each starting at a multiple of 8. The header
names every column with its type, offset (from the first column) and length.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.trace.events import KINDS
from labkit.widgets.palette import STYLES
from labkit.widgets.picture import MOST_AT_ONCE
from labkit.widgets.rows import rows_of
from labkit.widgets.window import window
from labkit.widgets.words import clock_note, plural

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from labkit.trace.events import Trace
    from labkit.widgets.picture import Picture
    from labkit.widgets.sketch import Sketch

_OF_ROWS = (
    "rank", "kind", "name", "peer", "tag", "group", "seq", "dtype", "reduction", "where", "tags",
)  # fmt: skip


def pack_rows(trace: Trace, known: Sketch) -> bytes:
    """The rows of `trace` and its tables, as ``front/events.js`` reads them."""
    columns = {name: trace.columns[name] for name in _OF_ROWS}
    columns["bytes"] = trace.columns["bytes"].astype(np.float64)
    columns["link"] = known.link
    header = {
        "strings": trace.strings,
        "groups": [{"name": g.description or g.name, "ranks": list(g.ranks)} for g in trace.groups],
        "tag_sets": [_plain(tags) for tags in trace.tags],
        "kinds": KINDS,
        "styles": [{**asdict(style), "said": style.words} for style in STYLES],
    }
    return _pack(header, columns)


def pack_bars(
    trace: Trace, picture: Picture, least: NDArray[np.int64] | None = None, **more: Any
) -> bytes:
    """Where everything lies.

    Parameters
    ----------
    least : as `rows_of` takes it
    more : further entries of the header
    """
    bars = picture.bars
    columns = {name: bars[name] for name in ("row", "lane", "style", "label", "start", "end")}
    columns["called"] = trace.columns["end"][bars["row"]]  # when the call of an operation returned
    columns["done"] = trace.columns["done"][bars["row"]]
    columns["arrows"] = picture.arrows.ravel()
    home = window(trace, picture)
    header = {
        "lanes": [[lane.rank, lane.number, lane.first, lane.stop] for lane in picture.lanes],
        "extent": picture.extent,
        "home": {"start": home.start, "end": home.end, "step": home.step},
        "rows": [
            {**asdict(row), "bottom": row.bottom}
            for row in rows_of(picture, trace.about.ranks, least)
        ],
        "steps": [
            {"index": s.index, "spans": {str(r): list(span) for r, span in s.spans.items()}}
            for s in trace.steps
        ],
        "labels": picture.words,
        "about": {**_plain(asdict(trace.about)), "note": clock_note(trace.about)},
        "remarks": remarks(picture),
        **more,
    }
    return _pack(header, columns)


def remarks(picture: Picture) -> list[str]:
    """What the picture cannot show and has to say instead."""
    if not picture.crowded:
        return []
    these = plural(picture.crowded, "operation")
    return [f"More than {MOST_AT_ONCE} at once: {these} drawn over others, in the lowest lane."]


def _pack(header: Mapping[str, Any], columns: Mapping[str, NDArray[Any]]) -> bytes:
    described, blocks, offset = {}, [], 0
    for name, column in columns.items():
        kind = "f8" if column.dtype.kind == "f" else "i4"
        block = np.ascontiguousarray(column, f"<{kind}").tobytes()
        described[name] = [kind, offset, len(column)]
        blocks.append(block + b"\0" * (-len(block) % 8))
        offset += len(blocks[-1])
    text = json.dumps({**header, "columns": described}, allow_nan=False).encode()
    text += b" " * (-(len(text) + 4) % 8)
    return len(text).to_bytes(4, "little") + text + b"".join(blocks)


def _plain(tags: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers and words that JSON can hold; infinities and the like become words."""
    return {str(key): value if _travels(value) else str(value) for key, value in tags.items()}


def _travels(value: object) -> bool:
    return isinstance(value, int | str) or (isinstance(value, float) and math.isfinite(value))
