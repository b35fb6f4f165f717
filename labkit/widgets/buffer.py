"""A `Picture` as one block of bytes, so that the front end gets 100,000 events in one message.

Layout: length of the header as a little-endian uint32, the header as JSON padded with spaces to a
multiple of 8 bytes, then the columns, each starting at a multiple of 8. The header names every
column with its type, offset (from the first column) and length, and holds the string tables.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.trace.events import KINDS
from labkit.widgets.palette import STYLES
from labkit.widgets.rows import rows_of
from labkit.widgets.window import window
from labkit.widgets.words import clock_note

if TYPE_CHECKING:
    from collections.abc import Mapping

    from labkit.trace.events import Trace
    from labkit.widgets.picture import Picture

_OF_TRACE = ("kind", "name", "peer", "tag", "group", "seq", "dtype", "reduction", "where", "tags")


def pack(trace: Trace, picture: Picture) -> bytes:
    """The bytes that ``front/events.js`` reads."""
    row = picture.bars["row"]
    texts: dict[str, int] = {}
    long, short = (
        np.array([texts.setdefault(pair[i], len(texts)) for pair in picture.labels], np.int32)
        for i in (0, 1)
    )
    columns: dict[str, Any] = {
        **{name: picture.bars[name] for name in ("start", "end", "reach")},
        "called": trace.columns["end"][row],  # when the call of an operation returned
        "done": trace.columns["done"][row],
        "bytes": trace.columns["bytes"][row].astype(np.float64),
        **{name: picture.bars[name] for name in ("rank", "lane", "style", "link")},
        **{name: trace.columns[name][row] for name in _OF_TRACE},
        "long": long,
        "short": short,
        "arrows": picture.arrows.ravel(),
    }
    described, blocks, offset = {}, [], 0
    for name, column in columns.items():
        kind = "f8" if column.dtype.kind == "f" else "i4"
        block = np.ascontiguousarray(column, f"<{kind}").tobytes()
        described[name] = [kind, offset, len(column)]
        blocks.append(block + b"\0" * (-len(block) % 8))
        offset += len(blocks[-1])
    home, rows = window(trace, picture), rows_of(picture, trace.about.ranks)
    header = {
        "columns": described,
        "lanes": [[lane.rank, lane.number, lane.first, lane.stop] for lane in picture.lanes],
        "extent": picture.extent,
        "home": {"start": home.start, "end": home.end, "step": home.step},
        "rows": [{**asdict(row), "bottom": row.bottom} for row in rows],
        "steps": [
            {"index": s.index, "spans": {str(r): list(span) for r, span in s.spans.items()}}
            for s in trace.steps
        ],
        "strings": trace.strings,
        "labels": list(texts),
        "groups": [{"name": g.description or g.name, "ranks": list(g.ranks)} for g in trace.groups],
        "tag_sets": [_plain(tags) for tags in trace.tags],
        "kinds": KINDS,
        "styles": [asdict(style) for style in STYLES],
        "about": {**_plain(asdict(trace.about)), "note": clock_note(trace.about)},
    }
    text = json.dumps(header, allow_nan=False).encode()
    text += b" " * (-(len(text) + 4) % 8)
    return len(text).to_bytes(4, "little") + text + b"".join(blocks)


def _plain(tags: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers and words that JSON can hold; infinities and the like become words."""
    return {str(key): value if _travels(value) else str(value) for key, value in tags.items()}


def _travels(value: object) -> bool:
    return isinstance(value, int | str) or (isinstance(value, float) and math.isfinite(value))
