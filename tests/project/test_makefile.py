"""``make`` from an empty checkout: set-up happens once, and errors say what to do.

A stand-in for Python plays the installer and writes down what it was asked, so nothing is
downloaded here; the real set-up is what runs these tests.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

STAND_IN = """#!/usr/bin/env bash
# Python as the Makefile sees it: makes environments of itself, writes down everything else.
case "$1 $2 $3" in
  "-c "*) exec "{python}" "$@" ;;
  "-m venv "*) rm -rf "$4" && mkdir -p "$4/bin" && cp "$0" "$4/bin/python" ;;
  *) echo "$@" >> "{log}" ;;
esac
"""


class Checkout:
    """A copy of the frame in a folder whose name has spaces, and the stand-in to set it up with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "my check out"
        self.folder.mkdir()
        for name in ("Makefile", "pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, self.folder)
        self.log = folder / "log"
        self.python = folder / "python"
        self.python.write_text(STAND_IN.format(python=sys.executable, log=self.log))
        self.python.chmod(0o755)

    def make(self, *arguments: str, python: str | None = None) -> subprocess.CompletedProcess[str]:
        # What the make that runs these tests was told is not for this one.
        told = {"ARGS", "BROWSER", "LESSON", "PYTHON", "RANKS", "STEPS", "TORCH"}
        environment = {
            k: v for k, v in os.environ.items() if k not in told and not k.startswith("MAKE")
        }
        return subprocess.run(
            ["make", f"PYTHON={python or self.python}", *arguments],
            cwd=self.folder, env=environment, capture_output=True, text=True, timeout=60,
        )  # fmt: skip

    def asked(self) -> list[str]:
        """What the stand-in was asked since the last look."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return lines


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_lab_sets_up_once(checkout: Checkout) -> None:
    assert checkout.make("lab").returncode == 0
    assert checkout.asked() == ["-m pip install -c constraints.txt -e .", "-m labkit lab"]
    assert checkout.make("lab").returncode == 0
    assert checkout.asked() == ["-m labkit lab"]


def test_tests_need_more_than_the_lab(checkout: Checkout) -> None:
    assert checkout.make("test").returncode == 0
    assert checkout.asked() == [
        "-m pip install -c constraints.txt -e .",
        "-m pip install -c constraints.txt -e .[test,dev]",
        "-m pytest",
    ]
    assert checkout.make("lint").returncode == 0
    assert [line.split()[1] for line in checkout.asked()] == ["ruff", "ruff", "mypy"]


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_other_requirements_are_installed_anew(checkout: Checkout, name: str) -> None:
    checkout.make("lab")
    checkout.asked()
    later = (checkout.folder / ".venv" / "ready-lab").stat().st_mtime + 5
    os.utime(checkout.folder / name, (later, later))
    checkout.make("lab")
    assert checkout.asked()[0] == "-m pip install -c constraints.txt -e ."


def test_a_moved_checkout_is_set_up_anew(checkout: Checkout) -> None:
    checkout.make("lab")
    checkout.asked()
    checkout.folder = checkout.folder.rename(checkout.folder.with_name("moved here"))
    assert checkout.make("lab").returncode == 0
    assert len(checkout.asked()) == 2
    assert checkout.make("lab").returncode == 0
    assert len(checkout.asked()) == 1


def test_a_broken_environment_is_set_up_anew(checkout: Checkout) -> None:
    checkout.make("lab")
    checkout.asked()
    (checkout.folder / ".venv" / "bin" / "python").unlink()
    assert checkout.make("lab").returncode == 0
    assert len(checkout.asked()) == 2


def test_leaving_the_browser_out_is_said_last(checkout: Checkout) -> None:
    done = checkout.make("test", "BROWSER=0")
    assert checkout.asked()[-1] == "-m pytest -m not soak and not gpu and not browser"
    assert done.stdout.splitlines()[-1] == "Browser tests were left out (BROWSER=0)."
    assert "left out" not in checkout.make("test").stdout


def test_torch_may_be_picked(checkout: Checkout) -> None:
    planned = checkout.make("-n", "lab", "TORCH=cpu").stdout
    assert "uv pip install --torch-backend=cpu -c constraints.txt torch" in planned
    assert planned.index("torch-backend") < planned.index("-e .")


def test_run_passes_its_words_on(checkout: Checkout) -> None:
    checkout.make("run", "RANKS=2", "STEPS=5")
    assert checkout.asked()[-1] == "-m labkit run data_parallel --ranks 2 --steps 5"


def test_an_old_python_is_refused(checkout: Checkout, tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.18\nexit 1\n')
    old.chmod(0o755)
    done = checkout.make("lab", python=str(old))
    assert done.returncode != 0
    assert "labkit needs Python 3.11 or newer" in done.stderr
    assert "Python 3.9.18" in done.stderr
    assert not (checkout.folder / ".venv").exists()


def test_a_python_that_is_not_there_is_named(checkout: Checkout) -> None:
    done = checkout.make("lab", python="python-of-nowhere")
    assert done.returncode != 0
    assert "labkit needs Python 3.11 or newer" in done.stderr
    assert "python-of-nowhere" in done.stderr


def test_a_python_without_venv_says_what_to_install(checkout: Checkout, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\n[ "$1" = -c ] && exec "{sys.executable}" "$@"\nexit 1\n')
    bare.chmod(0o755)
    done = checkout.make("lab", python=str(bare))
    assert done.returncode != 0
    assert "apt install python3-venv" in done.stderr


def test_a_failed_test_run_fails(checkout: Checkout) -> None:
    checkout.make("test")
    python = checkout.folder / ".venv" / "bin" / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    done = checkout.make("test", "BROWSER=0")
    assert done.returncode != 0
    assert "left out" not in done.stdout


def test_help_names_every_target(checkout: Checkout) -> None:
    said = checkout.make().stdout
    for target in ("lab", "test", "run", "store", "lint", "soak", "bench", "clean"):
        assert f"make {target} " in said
