"""The command line: right words do their work, wrong ones get one line and exit code 2."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from labkit import cli

ROOT = Path(__file__).parents[1]


def labkit(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "labkit", *arguments],
        cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "the following arguments are required"),
        (["fly"], "'fly'"),
        (["run"], "lesson"),
        (["run", "no_such_lesson"], "'no_such_lesson'"),
        (["run", "data_parallel", "--ranks", "0"], "'0' is not a whole number above 0"),
        (["run", "data_parallel", "--ranks", "four"], "'four' is not a whole number above 0"),
        (["run", "data_parallel", "--steps", "-3"], "'-3' is not a whole number above 0"),
        (["run", "data_parallel", "--steps", "2.5"], "'2.5'"),
        (["run", "data_parallel", "--save", "/nowhere/a.trace"], "no folder '/nowhere'"),
        (["run", "data_parallel", "--save", "/"], "is a folder"),
        (["lab", "--port", "http"], "'http'"),
    ],
)
def test_bad_input_gets_one_line_and_code_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1


def test_another_number_of_ranks_than_torchruns_is_refused() -> None:
    done = labkit("run", "data_parallel", "--ranks", "3", WORLD_SIZE="2", RANK="0")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "labkit run: --ranks 3, but torchrun started 2: leave --ranks out"
    ]


def test_more_ranks_than_a_machine_runs_are_refused_in_one_line() -> None:
    done = labkit("run", "data_parallel", "--ranks", "999999")
    assert done.returncode == 2
    assert done.stderr == "labkit run: ranks=999999: one machine runs at most 250 ranks\n"


def test_run_trains_prints_a_summary_and_keeps_the_trace(tmp_path: Path) -> None:
    import labkit as lab

    path = tmp_path / "run.trace"
    done = labkit("run", "data_parallel", "--ranks", "2", "--steps", "2", "--save", str(path))
    assert done.returncode == 0, done.stderr
    trace = lab.Trace.load(path)
    assert trace.about.ranks == 2
    assert len(trace.steps) == 2
    assert "data_parallel: 2 ranks, 2 steps" in done.stdout
    assert str(trace.summary()) in done.stdout


def test_run_under_torchrun_prints_once() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4",
         "-m", "labkit", "run", "data_parallel", "--steps", "2"],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("data_parallel: 4 ranks, 2 steps") == 1
    assert "weights equal on all ranks: yes" in done.stdout


def test_doctor_says_what_is_here() -> None:
    found = {finding.what: finding for finding in cli.examine()}
    assert found["Python"].found == ".".join(map(str, sys.version_info[:3]))
    assert "gloo" in found["backends"].found
    assert found["torch"].todo == ""
    assert found["loopback"].found.startswith("127.0.0.1 answers")
    assert {"GPUs", "cores", "memory", "Chromium", "jupyterlab"} <= set(found)


def test_doctor_says_what_to_do_about_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "find_spec", lambda name: None if name == "anywidget" else name)
    with pytest.raises(SystemExit) as ended:
        cli.main(["doctor"])
    assert ended.value.code == 1
    assert "pip install anywidget" in capsys.readouterr().out


def test_doctor_is_content_without_chromium(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CHROMIUM", "/nowhere/chromium")
    with pytest.raises(SystemExit) as ended:
        cli.main(["doctor"])
    assert ended.value.code == 0
    assert "apt-get install -y chromium" in capsys.readouterr().out


def test_chromium_may_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHROMIUM", sys.executable)
    assert cli.find_chromium() == sys.executable


def test_no_chromium_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CHROMIUM", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(Path, "is_file", lambda self: False)
    assert cli.find_chromium() is None


def test_the_first_notebook_is_the_one_with_the_smallest_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "notebooks").mkdir()
    for name in ("01_b.ipynb", "00_a.ipynb", "scratch.ipynb"):
        (tmp_path / "notebooks" / name).touch()
    monkeypatch.chdir(tmp_path)
    assert cli.first_notebook() == tmp_path / "notebooks" / "00_a.ipynb"


def test_without_a_screen_no_browser_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.delenv("DISPLAY", raising=False)
    notebook = Path("/here/notebooks/01_a.ipynb")
    assert "--no-browser" in cli.lab_command(notebook, 8888)
    monkeypatch.setenv("DISPLAY", ":0")
    assert "--no-browser" not in cli.lab_command(notebook, 8888)
