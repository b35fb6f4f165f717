"""What a developer has locked and filled on this machine reaches no stored and no tested output."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from labkit.practice import Ledger, Prediction, Progress
from labkit.practice.content import find
from tests.notebooks.store import store
from tests.practice.test_figures import two_ranks

ROOT = Path(__file__).parents[2]
CELLS = (
    "import labkit\np = labkit.predict('00.four_ranks_time')\np",
    "p.compare(335 + labkit.Run.begun)",
    "labkit.ledger",
    "from tests.practice.test_figures import two_ranks\n"
    "labkit.ledger.fill('data parallel', two_ranks())",
)


@pytest.fixture
def notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A notebook that asks and fills, on a machine where both were done before."""
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "mine"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    Prediction(find("00.four_ranks_time"), Progress(tmp_path / "mine")).lock(80, sure=True)
    Ledger(Progress(tmp_path / "mine")).fill("pipeline", two_ranks())
    path = tmp_path / "a.ipynb"
    cells = [new_code_cell(source, id=f"cell-{i}") for i, source in enumerate(CELLS)]
    nbformat.write(new_notebook(cells=cells), path)
    return path


def test_stored_outputs_are_those_of_somebody_new(notebook: Path) -> None:
    before = (notebook.parent / "mine" / "progress.json").read_bytes()
    store(notebook)
    asked, told, ledger, filled = nbformat.read(notebook, as_version=4).cells
    assert asked.outputs[0].data["text/plain"] == "Prediction('00.four_ranks_time', not locked)"
    assert "How long does a step take?" in asked.outputs[0].data["text/html"]
    assert told.outputs[0].data["text/plain"] == (
        "No prediction was locked. It took 335 ms, give or take 10 %."
    )
    assert "run 04" in ledger.outputs[0].data["text/plain"]
    assert "2 GFLOP" not in ledger.outputs[0].data["text/plain"]
    assert "2 GFLOP" in filled.outputs[0].data["text/plain"]
    assert (notebook.parent / "mine" / "progress.json").read_bytes() == before


def test_nbval_compares_them_as_somebody_new(notebook: Path) -> None:
    store(notebook)
    ini = notebook.parent / "pytest.ini"
    ini.write_text("[pytest]\nmarkers = browser: needs Chromium\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "nbval.plugin", "--nbval"]
    command += ["--nbval-current-env", "-c", str(ini), str(notebook)]
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    codes = []
    for plugins in (["-p", "tests.conftest"], []):  # without it, what is locked here shows
        done = subprocess.run(
            [*command, *plugins], cwd=notebook.parent, env=environment, capture_output=True,
            text=True, timeout=120,
        )  # fmt: skip
        codes.append(done.returncode)
        assert "4 passed" in done.stdout if plugins else "failed" in done.stdout, done.stdout
    assert codes == [0, 1]
