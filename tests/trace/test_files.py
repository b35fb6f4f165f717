"""Files: what was saved comes back exactly; whatever else is in a file is refused, by name."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.trace import About, Group, Trace
from labkit.trace.events import COLUMNS, KINDS
from labkit.trace.files import load, save

LINE = b"labkit trace 001\n"


def same(a: Trace, b: Trace) -> bool:
    """Bit for bit: NaN in `done` is the same as itself."""
    columns = all(a.columns[n].tobytes() == b.columns[n].tobytes() for n in COLUMNS)
    tables = (a.strings, a.groups, a.about) == (b.strings, b.groups, b.about)
    return columns and tables and repr(a.tags) == repr(b.tags)


_TIME = st.floats(allow_nan=False, allow_infinity=False)
_TAG = st.none() | st.booleans() | st.integers() | st.floats() | st.text()


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    ranks = draw(st.integers(1, 5))
    strings = draw(st.lists(st.text(), max_size=3, unique=True))
    tags = draw(st.lists(st.dictionaries(st.text(), _TAG, max_size=2), max_size=2))
    members = st.lists(st.integers(0, ranks - 1), min_size=1, max_size=3).map(tuple)
    groups = draw(st.lists(st.builds(Group, st.text(), st.text(), members), max_size=2))
    rows = draw(st.integers(0, 6))
    limits = {
        "kind": (0, len(KINDS) - 1), "name": (-1, len(strings) - 1),
        "dtype": (-1, len(strings) - 1), "reduction": (-1, len(strings) - 1),
        "where": (-1, len(strings) - 1), "group": (-1, len(groups) - 1),
        "tags": (-1, len(tags) - 1), "peer": (-1, ranks - 1), "rank": (0, ranks - 1),
    }  # fmt: skip
    columns = {}
    for name, kind in COLUMNS.items():
        whole = np.iinfo(kind) if kind != "f8" else np.iinfo("i8")
        low, high = limits.get(name, (whole.min, whole.max))
        value = st.integers(low, high) if kind != "f8" else _TIME
        if name == "done":
            value = value | st.just(float("nan"))
        columns[name] = np.array(draw(st.lists(value, min_size=rows, max_size=rows)), kind)
    columns["rank"].sort()
    columns["end"] = np.maximum(columns["start"], columns["end"])
    about = draw(
        st.builds(
            About, st.just(ranks), st.sampled_from(["measured", "paced", "modelled"]),
            st.floats(0, 1), st.integers(0, 64), st.text(), st.text(), st.text(),
        )
    )  # fmt: skip
    return Trace(columns, strings, groups, tags, about)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traces")


@given(trace=traces())
def test_what_was_saved_comes_back_exactly(folder: Path, trace: Trace) -> None:
    path = folder / "round.trace"
    save(trace, path)
    assert same(load(path), trace)


@pytest.fixture
def trace(make: Any) -> Trace:
    rows = [
        {"rank": 0, "kind": "compute", "name": "forward", "start": 0.0, "end": 1.5,
         "tags": {"microbatch": 3}},
        {"rank": 1, "kind": "send", "name": "send", "start": 1.0, "op": 0, "peer": 0, "bytes": 8},
    ]  # fmt: skip
    made = make(rows, error=0.25, cores=2, backend="gloo", note="é")
    assert isinstance(made, Trace)
    return made


def test_the_doors_of_a_trace_lead_here(trace: Trace, tmp_path: Path) -> None:
    trace.save(tmp_path / "a.trace")
    assert same(Trace.load(str(tmp_path / "a.trace")), trace)


def test_the_file_starts_with_its_version_and_holds_no_pickle(trace: Trace, tmp_path: Path) -> None:
    path = tmp_path / "a.trace"
    save(trace, path)
    assert path.read_bytes().startswith(LINE)
    with pytest.raises(pickle.UnpicklingError):
        pickle.loads(path.read_bytes())


def parts(data: bytes) -> tuple[dict[str, Any], bytes]:
    length = int.from_bytes(data[17:25], "little")
    return json.loads(data[25 : 25 + length]), data[25 + length :]


def whole(header: Any, columns: bytes, line: bytes = LINE) -> bytes:
    text = json.dumps(header).encode()
    return line + len(text).to_bytes(8, "little") + text + columns


@pytest.fixture
def refused(trace: Trace, tmp_path: Path) -> Callable[[bytes], str]:
    def check(data: bytes) -> str:
        path = tmp_path / "hostile.trace"
        path.write_bytes(data)
        with pytest.raises(ValueError, match=r"hostile\.trace: .") as caught:
            load(path)
        assert type(caught.value) is ValueError
        return str(caught.value)

    return check


@pytest.fixture
def good(trace: Trace, tmp_path: Path) -> bytes:
    save(trace, tmp_path / "good.trace")
    return (tmp_path / "good.trace").read_bytes()


def test_other_versions_and_other_files_are_refused(
    refused: Callable[[bytes], str], good: bytes, tmp_path: Path
) -> None:
    assert "trace format 2: this labkit reads format 1" in refused(good.replace(b"001", b"002", 1))
    assert "trace format 0" in refused(good.replace(b"001", b"000", 1))
    archive = tmp_path / "x.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("rank.npy", b"")
    for other in (b"", b"labkit", LINE[:-1], b"\x00" * 99, good[1:], archive.read_bytes(),
                  pickle.dumps({"rank": [1]})):  # fmt: skip
        assert "not a labkit trace" in refused(other)


def test_a_file_that_is_cut_short_or_too_long_is_refused(
    refused: Callable[[bytes], str], good: bytes
) -> None:
    for length in range(len(good)):
        refused(good[:length])
    assert "bytes of columns" in refused(good + b"\x00")


def test_sizes_are_checked_before_memory_is_taken(
    refused: Callable[[bytes], str], good: bytes
) -> None:
    header, columns = parts(good)
    assert "bytes of columns" in refused(whole(header | {"rows": 10**15}, columns))
    huge = LINE + (2**63).to_bytes(8, "little") + good[25:]
    assert "header is cut short" in refused(huge)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": -1}, "-1 rows"),
        ({"rows": 2.0}, "2.0 rows"),
        ({"rows": True}, "True rows"),
        ({"columns": [["rank", "i4"]]}, "other columns than format 1 has"),
        ({"columns": None}, "other columns"),
        ({"code": "import os"}, "holds other parts than about"),
        ({"strings": ["a", 3]}, "'strings' is no list of words"),
        ({"strings": {"a": 1}}, "'strings'"),
        ({"strings": []}, "outside its table"),
        ({"groups": None}, "'groups'"),
        ({"groups": [["0", "default", "01"]]}, "'groups'"),
        ({"groups": [["0", "default", [0, 1.5]]]}, "'groups'"),
        ({"groups": [["0", "default", [0, 9]]]}, "group '0' has ranks"),
        ({"tags": [["a"]]}, "'tags'"),
        ({"tags": [{"a": [1]}]}, "'tags'"),
        ({"about": {}}, "'about' holds other parts"),
        ({"about": {"ranks": 2, "clock": "measured", "error": 0.0, "cores": 0, "backend": "",
                    "unit": "s", "note": 5}}, "note=5 in 'about' is no str"),
        ({"about": {"ranks": 1, "clock": "measured", "error": 0.0, "cores": 0, "backend": "",
                    "unit": "s", "note": ""}}, "outside its table|has ranks"),
        ({"about": {"ranks": 2, "clock": "now", "error": 0.0, "cores": 0, "backend": "",
                    "unit": "s", "note": ""}}, "clock='now'"),
    ],
)  # fmt: skip
def test_headers_that_no_trace_has_are_refused(
    refused: Callable[[bytes], str], good: bytes, changes: dict[str, Any], message: str
) -> None:
    header, columns = parts(good)
    told = refused(whole(header | changes, columns))
    assert any(choice in told for choice in message.split("|")), told


@pytest.mark.parametrize(
    "text", [b"[", b"[]", b"null", b"\xff\xfe", b"[" * 200_000, b'{"rows": ' + b"9" * 9999 + b"}"]
)
def test_headers_that_are_no_header_are_refused(
    refused: Callable[[bytes], str], text: bytes
) -> None:
    refused(LINE + len(text).to_bytes(8, "little") + text)


@settings(max_examples=150)
@given(data=st.data())
def test_a_damaged_file_is_refused_or_is_a_trace(folder: Path, data: st.DataObject) -> None:
    path = folder / "damaged.trace"
    save(data.draw(traces()), path)
    bytes_ = bytearray(path.read_bytes())
    places = st.integers(0, len(bytes_) - 1)
    for at, value in data.draw(st.lists(st.tuples(places, st.integers(0, 255)), min_size=1)):
        bytes_[at] = value
    path.write_bytes(bytes_)
    told = ""
    try:
        assert len(load(path).events) == len(load(path))
    except ValueError as error:
        told = str(error)
    assert not told or "damaged.trace: " in told


def test_a_tag_that_is_no_number_and_no_word_is_refused_and_no_file_left(
    make: Any, tmp_path: Path
) -> None:
    row = {"rank": 0, "kind": "compute", "start": 0.0, "tags": {"shape": (1, 2)}}
    with pytest.raises(ValueError, match=r"a\.trace: tag 'shape'=\(1, 2\)"):
        save(make([row]), tmp_path / "a.trace")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_file_and_nothing_beside_it(
    trace: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.trace"
    save(trace, path)
    before = path.read_bytes()

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save(trace.step(0), path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.trace"]


def test_missing_files_and_folders_are_the_systems_errors(trace: Trace, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none.trace")
    with pytest.raises(FileNotFoundError):
        save(trace, tmp_path / "none" / "a.trace")
