"""What pip gets: the wheel holds all of labkit, and the tested versions are written down."""

from __future__ import annotations

import email
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
REQUIREMENTS = [
    Requirement(text)
    for texts in (PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
    for text in texts
]
PINS = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (path,) = folder.glob("labkit-*-py3-none-any.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_holds_every_file_of_labkit_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    kinds = {".py", ".js", ".css", ".typed", ".toml", ".json", ".md"}
    expected = {
        path.relative_to(ROOT).as_posix()
        for path in ROOT.glob("labkit/**/*")
        if path.suffix in kinds
    }
    held = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert held == expected
    shown = {"timeline.js", "timeline.css", "front/painter.js"}
    assert {"labkit/py.typed", *(f"labkit/widgets/{name}" for name in shown)} <= held
    assert "labkit/practice/predictions/00_start_here.toml" in held


def test_the_wheel_says_what_it_is(wheel: zipfile.ZipFile) -> None:
    (path,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
    said = email.message_from_bytes(wheel.read(path))
    assert said["Requires-Python"] == PROJECT["requires-python"]
    assert said["License-Expression"] == "MIT"
    needs = [Requirement(text) for text in said.get_all("Requires-Dist", [])]
    assert {n.name for n in needs if not n.marker} == {
        Requirement(text).name for text in PROJECT["dependencies"]
    }
    assert any(name.endswith("/licenses/LICENSE") for name in wheel.namelist())


@pytest.mark.parametrize("requirement", REQUIREMENTS, ids=str)
def test_the_tested_version_lies_in_the_range(requirement: Requirement) -> None:
    pins = dict(line.split("==") for line in PINS)
    pinned = {canonicalize_name(name): version for name, version in pins.items()}
    assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)])
    assert requirement.specifier, "a range is wanted"


def test_constraints_are_plain_pins_in_order() -> None:
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][0-9a-z.]*", line) for line in PINS)
    assert sorted(PINS, key=str.lower) == PINS


def test_torch_is_held_to_the_line_that_was_tested() -> None:
    (torch,) = (r for r in REQUIREMENTS if r.name == "torch")
    assert torch.specifier.contains("2.13.0+cpu")
    assert not torch.specifier.contains("2.14.0")
    assert not torch.specifier.contains("2.12.1")


def test_every_tested_version_accepts_the_oldest_python_that_labkit_does() -> None:
    oldest = PROJECT["requires-python"].removeprefix(">=") + ".0"
    seen = 0
    for line in PINS:
        name, _, version = line.partition("==")
        try:
            found = metadata.metadata(name)
        except metadata.PackageNotFoundError:
            continue  # for another system
        if found["Version"].partition("+")[0] != version:
            continue
        wanted = SpecifierSet(found["Requires-Python"] or "")
        assert oldest in wanted, f"{line} needs Python {wanted}"
        seen += 1
    assert seen > 50
