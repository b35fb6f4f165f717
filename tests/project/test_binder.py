"""Binder builds from ``binder/``, and would only say so there if something were missing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
BINDER = ROOT / "binder"
CONDA_NAMES = {"torch": "pytorch-cpu", "matplotlib": "matplotlib-base"}


def test_repo2docker_understands_the_folder() -> None:
    command = [sys.executable, "-m", "repo2docker", "--no-build", "--debug", str(ROOT)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60)
    dockerfile = said.stdout + said.stderr
    assert said.returncode == 0, dockerfile
    assert "Building conda environment for python=3.12" in dockerfile
    assert re.search(r'env update .* --file "binder/environment.yml"', dockerfile)
    assert "./binder/postBuild" in dockerfile
    assert 'R2D_ENTRYPOINT="${REPO_DIR}/binder/start"' in dockerfile


def test_everything_labkit_needs_is_installed_with_the_same_range() -> None:
    environment = yaml.safe_load((BINDER / "environment.yml").read_text(encoding="utf-8"))
    installed = {
        re.split(r"[<>=]", text)[0]: re.sub(r"^[\w-]+", "", text)
        for text in environment["dependencies"]
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    build = project["build-system"]["requires"]
    for text in [*project["project"]["dependencies"], *build]:
        needed = Requirement(text)
        range_of_conda = installed[CONDA_NAMES.get(needed.name, needed.name)]
        assert needed.specifier == Requirement(f"x{range_of_conda}").specifier, text
    assert installed["python"] == "=3.12"


@pytest.mark.parametrize("script", ["postBuild", "start"])
def test_scripts_are_sound(script: str) -> None:
    path = BINDER / script
    assert os.access(path, os.X_OK)
    subprocess.run(["bash", "-n", str(path)], check=True)


def test_post_build_installs_labkit_and_nothing_else(tmp_path: Path) -> None:
    fresh = tmp_path / "fresh"
    venv.create(fresh, symlinks=os.name != "nt")
    python = fresh / "bin" / "python"
    site = next(fresh.glob("lib/python*/site-packages"))
    before = set(site.iterdir())
    # pip and hatchling, which environment.yml installs, are lent by this environment.
    (site / "lent.pth").write_text(sysconfig.get_path("purelib"))
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", str(BINDER / "postBuild")],
        cwd=ROOT, env={**os.environ, "PATH": path, "PIP_IGNORE_INSTALLED": "1"},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    new = {item.name for item in set(site.iterdir()) - before if item.suffix != ".pth"}
    assert new == {"labkit", next(n for n in new if n.startswith("labkit-"))}
    where = subprocess.check_output(
        [python, "-c", "import labkit; print(labkit.__file__)"], cwd=tmp_path, text=True
    )
    assert Path(where.strip()).is_relative_to(site)


def test_a_failing_post_build_fails() -> None:
    assert "set -euo pipefail" in (BINDER / "postBuild").read_text(encoding="utf-8")


def test_start_hands_over_to_its_arguments() -> None:
    said = subprocess.check_output(
        [BINDER / "start", sys.executable, "-c", "import sys; print(sys.argv[1:])", "a b", "c"],
        text=True, timeout=10,
    )  # fmt: skip
    assert said.strip() == "['a b', 'c']"


def test_the_badge_leads_to_a_notebook_that_is_there() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (target,) = re.findall(r"\(([^)\s]*/v2/gh/[^)\s]*)\)", readme)
    (path,) = parse_qs(urlsplit(target).query)["urlpath"]
    assert path.startswith("lab/tree/notebooks/")
    assert (ROOT / path.removeprefix("lab/tree/")).is_file()
