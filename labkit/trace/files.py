"""One file a trace: written in one go, and read without trusting it.

The file is a line that names the format and its version, the length of a header, the header (JSON:
tables, number of rows, and what is said of the run), and then each column's numbers, little-endian,
in the order of the header. Nothing in it is code. What a reader does not know it refuses: another
version, another column, a byte too many or too few.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from labkit.trace.events import COLUMNS, About, Group, Trace

__all__ = ["VERSION", "load", "save", "write_whole"]

VERSION = 1
_MAGIC = b"labkit trace "
_LINE = len(_MAGIC) + 4  # the magic, three digits, a line feed
_LENGTH = 8
_ABOUT = {name: type(value) for name, value in vars(About(1)).items()}
_HEADER = {"rows", "columns", "strings", "groups", "tags", "about"}


def save(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Write `trace` to one file at `path`; a file that is there is replaced at once or not at all.

    Raises
    ------
    ValueError : a tag is no number, word, truth value or None
    OSError : the file cannot be written
    """
    for tags in trace.tags:
        for key, value in tags.items():
            if not isinstance(key, str) or not _plain(value):
                raise ValueError(f"{path}: tag {key!r}={value!r} is no number and no word")
    header = {
        "rows": len(trace),
        "columns": [[name, kind] for name, kind in COLUMNS.items()],
        "strings": list(trace.strings),
        "groups": [[g.name, g.description, list(g.ranks)] for g in trace.groups],
        "tags": [dict(tags) for tags in trace.tags],
        "about": {name: kind(getattr(trace.about, name)) for name, kind in _ABOUT.items()},
    }
    text = json.dumps(header).encode("ascii")
    columns = (trace.columns[name].astype(f"<{kind}").tobytes() for name, kind in COLUMNS.items())
    first = b"%s%03d\n" % (_MAGIC, VERSION)
    write_whole(path, b"".join([first, len(text).to_bytes(_LENGTH, "little"), text, *columns]))


def load(path: str | os.PathLike[str]) -> Trace:
    """Read a trace that `save` wrote.

    Raises
    ------
    ValueError : the file is no trace, of a version that this labkit does not know, damaged, or
        holds what no trace can; the message names the file
    OSError : the file cannot be read
    """
    data = Path(path).read_bytes()
    try:
        return _read(data)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"{os.fspath(path)}: {error or type(error).__name__}") from error


def _read(data: bytes) -> Trace:
    version = data[len(_MAGIC) : _LINE - 1]
    if not data.startswith(_MAGIC) or data[_LINE - 1 : _LINE] != b"\n" or not version.isdigit():
        raise ValueError("not a labkit trace")
    if int(version) != VERSION:
        raise ValueError(f"trace format {int(version)}: this labkit reads format {VERSION}")
    at = _LINE + _LENGTH
    length = int.from_bytes(data[_LINE:at], "little")
    if length > len(data) - at:
        raise ValueError("damaged: the header is cut short")
    header = json.loads(data[at : at + length].decode("ascii"))
    if not isinstance(header, dict) or set(header) != _HEADER:
        raise ValueError(f"damaged: the header holds other parts than {', '.join(sorted(_HEADER))}")
    rows = header["rows"]
    if type(rows) is not int or rows < 0:
        raise ValueError(f"damaged: {rows!r} rows")
    if header["columns"] != [[name, kind] for name, kind in COLUMNS.items()]:
        raise ValueError("damaged: other columns than format 1 has")
    at += length
    expected = rows * sum(np.dtype(kind).itemsize for kind in COLUMNS.values())
    if len(data) - at != expected:
        raise ValueError(f"damaged: {len(data) - at} bytes of columns, {expected} belong there")
    columns = {}
    for name, kind in COLUMNS.items():
        columns[name] = np.frombuffer(data, f"<{kind}", rows, at)
        at += columns[name].nbytes
    return Trace(
        columns, _strings(header["strings"]), _groups(header["groups"]), _tags(header["tags"]),
        _about(header["about"]),
    )  # fmt: skip


def _strings(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise ValueError("damaged: 'strings' is no list of words")
    return value


def _groups(value: Any) -> list[Group]:
    groups = []
    for entry in value if isinstance(value, list) else [None]:
        match entry:
            case [str(name), str(description), [*ranks]] if all(type(r) is int for r in ranks):
                groups.append(Group(name, description, tuple(ranks)))
            case _:
                raise ValueError("damaged: 'groups' is no list of name, description and ranks")
    return groups


def _tags(value: Any) -> list[Mapping[str, Any]]:
    good = isinstance(value, list) and all(
        isinstance(tags, dict) and all(map(_plain, tags.values())) for tags in value
    )
    if not good:
        raise ValueError("damaged: 'tags' is no list of numbers and words by name")
    return list(value)


def _about(value: Any) -> About:
    if not isinstance(value, dict) or set(value) != set(_ABOUT):
        raise ValueError(f"damaged: 'about' holds other parts than {', '.join(_ABOUT)}")
    for name, kind in _ABOUT.items():
        if type(value[name]) is not kind:
            raise ValueError(f"damaged: {name}={value[name]!r} in 'about' is no {kind.__name__}")
    return About(**value)


def _plain(value: Any) -> bool:
    return value is None or type(value) in (bool, int, float, str)


def write_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Write `data` beside `path`, then put it in its place: a reader sees all of it or none."""
    target = Path(path).resolve()
    beside = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        with beside.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)
