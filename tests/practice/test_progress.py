"""Progress survives two kernels, a damaged file, a full or read-only disk, and a newer labkit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from labkit.practice import progress
from labkit.practice.progress import Progress

COUNT = """
import sys
from pathlib import Path
from labkit.practice.progress import Progress
mine, shared = sys.argv[2], Progress(Path(sys.argv[1]))
for i in range(25):
    shared.put("own", f"{mine}-{i}", i)
    shared.change("count", "all", lambda n: (n or 0) + 1)
"""


def put_two(kept: Progress) -> None:
    kept.put("a", "x", 1)
    kept.put("a", "y", 2)


@pytest.fixture
def kept(tmp_path: Path) -> Progress:
    return Progress(tmp_path / "home")


def file_of(kept: Progress, text: str) -> Path:
    kept.path.parent.mkdir(parents=True)
    kept.path.write_text(text, encoding="utf-8")
    return kept.path


def test_a_record_is_there_in_the_next_kernel(kept: Progress) -> None:
    kept.put("predictions", "00.x", {"value": 80.0, "sure": True})
    fresh = Progress(kept.path.parent)
    assert fresh.get("predictions", "00.x") == {"value": 80.0, "sure": True}
    assert fresh.get("predictions", "00.y") is None
    assert fresh.section("ledger") == {}
    assert json.loads(kept.path.read_text())["schema"] == 1


def test_looking_leaves_nothing_behind(kept: Progress) -> None:
    assert kept.get("predictions", "00.x") is None
    assert not kept.path.parent.exists()


def test_a_record_can_be_forgotten_also_twice(kept: Progress) -> None:
    kept.put("a", "x", 1)
    kept.put("a", "y", 2)
    for _ in range(2):
        kept.drop("a", "x")
    assert kept.section("a") == {"y": 2}


def test_what_is_handed_out_is_a_copy(kept: Progress) -> None:
    kept.put("a", "x", [1])
    kept.get("a", "x").append(2)
    assert kept.get("a", "x") == [1]


@pytest.mark.parametrize("value", [float("nan"), object(), {1, 2}])
def test_what_json_cannot_hold_is_refused_and_the_file_stays(kept: Progress, value: object) -> None:
    kept.put("a", "x", 1)
    with pytest.raises((TypeError, ValueError)):
        kept.put("a", "x", value)
    assert kept.get("a", "x") == 1


def test_kernels_at_once_lose_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", COUNT, str(tmp_path / "home")]
    started = [subprocess.Popen([*command, name]) for name in ("a", "b", "c")]
    assert [process.wait(60) for process in started] == [0, 0, 0]
    kept = Progress(tmp_path / "home")
    assert len(kept.section("own")) == 75
    assert kept.get("count", "all") == 75
    assert not list(kept.path.parent.glob("progress-*"))  # nothing half written


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"schema": 1, "a": {', "Expecting"),
        ("", "Expecting value"),
        ("[1, 2]", "it holds no table"),
        ('{"a": {}}', "its schema is None"),
        ('{"schema": true}', "its schema is True"),
        ('{"schema": 1, "a": 3}', "its section 'a' is no table"),
    ],
)
def test_a_damaged_file_is_put_aside_and_told(kept: Progress, text: str, why: str) -> None:
    path = file_of(kept, text)
    with pytest.warns(UserWarning, match=f"could not be read.*{why}.*begins anew"):
        kept.put("a", "x", 1)
    aside = path.with_name("progress-unreadable-1.json")
    assert aside.read_text() == text
    assert kept.get("a", "x") == 1
    path.write_text("broken again")
    with pytest.warns(UserWarning, match="unreadable-2"):
        assert kept.get("a", "x") is None
    assert aside.read_text() == text


def test_bytes_that_are_no_text_are_put_aside_too(kept: Progress) -> None:
    file_of(kept, "").write_bytes(b"\xff\xfe\x00")
    with pytest.warns(UserWarning, match="could not be read"):
        assert kept.get("a", "x") is None


def test_a_newer_labkits_file_is_read_and_never_written(kept: Progress) -> None:
    text = json.dumps({"schema": 2, "a": {"x": 1}, "new": [1]})
    path = file_of(kept, text)
    with pytest.warns(UserWarning, match=r"newer labkit \(schema 2, here 1\)"):
        kept.put("a", "y", 2)
    assert kept.section("a") == {"x": 1, "y": 2}
    assert path.read_text() == text


def test_where_nothing_can_be_written_it_goes_on_in_memory_and_says_so_once(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("in the way")
    kept = Progress(tmp_path / "file" / "home")  # also for root, whom no permission stops
    with pytest.warns(UserWarning, match="is not stored in .*LABKIT_HOME") as told:
        put_two(kept)
    assert len(told) == 1
    assert Progress(kept.path.parent).section("a") == {"x": 1, "y": 2}
    kept.drop("a", "x")
    assert kept.section("a") == {"y": 2}


def test_a_file_that_cannot_be_replaced_is_still_read(
    kept: Progress, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.put("a", "x", 1)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(progress.os, "fsync", full)
    with pytest.warns(UserWarning, match="No space left"):
        kept.put("a", "y", 2)
    assert kept.section("a") == {"x": 1, "y": 2}
    assert json.loads(kept.path.read_text())["a"] == {"x": 1}
    assert not list(kept.path.parent.glob("progress-*"))


def test_a_write_that_is_cut_short_leaves_the_old_file(
    kept: Progress, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.put("a", "x", 1)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(progress.os, "fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            kept.put("a", "x", 2)
    assert kept.get("a", "x") == 1
    kept.put("a", "x", 3)  # the lock was let go
    assert kept.get("a", "x") == 3


def test_labkit_home_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "mine"))
    assert Progress().path == tmp_path / "mine" / "progress.json"
    monkeypatch.delenv("LABKIT_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    if sys.platform == "linux":
        assert progress.home() == tmp_path / "data" / "labkit"


def test_every_test_has_a_home_of_its_own() -> None:
    assert "labkit-homes-" in os.environ["LABKIT_HOME"]
    assert not progress.home().exists()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Progress().put("a", "x", 1)
