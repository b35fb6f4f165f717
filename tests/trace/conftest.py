"""Traces written by hand: a row is a dict of the columns that matter to the test."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

from labkit.trace import About, Group, Trace
from labkit.trace.events import COLUMNS, KINDS

# A machine that other tests keep busy may pause any example for long.
settings.register_profile("labkit", deadline=None)
settings.load_profile("labkit")

Row = Mapping[str, Any]
MakeTrace = Callable[..., Trace]

_NONE = {"done": np.nan, "op": -1, "group": -1, "seq": -1, "peer": -1, "tag": -1}


def build(
    rows: Sequence[Row], ranks: int = 2, groups: Sequence[Sequence[int]] = (), **about: Any
) -> Trace:
    """A trace of `rows`; `groups` are tuples of ranks, by default one of all ranks."""
    strings: dict[str, int] = {}
    tags: list[Mapping[str, Any]] = []
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    for row in rows:
        assert set(row) <= {*COLUMNS}, row
        for name in COLUMNS:
            value = row.get(name, _NONE.get(name, 0))
            if name == "kind":
                value = KINDS.index(row["kind"])
            elif name == "end":
                value = row.get("end", row["start"])
            elif name in ("name", "dtype", "reduction", "where"):
                text = row.get(name)
                value = -1 if text is None else strings.setdefault(text, len(strings))
            elif name == "tags":
                value = -1
                if "tags" in row:
                    value = len(tags)
                    tags.append(row["tags"])
            columns[name].append(value)
    arrays = {name: np.array(columns[name], kind) for name, kind in COLUMNS.items()}
    made = [
        Group(str(i), "default" if i == 0 else f"group {i}", tuple(members))
        for i, members in enumerate(groups or [range(ranks)])
    ]
    return Trace(arrays, list(strings), made, tags, About(ranks, **about))


@pytest.fixture(scope="session")
def make() -> MakeTrace:
    return build
