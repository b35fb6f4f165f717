"""Storing a notebook keeps what is compared and read, and drops the rest."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient.exceptions import CellExecutionError
from nbformat.v4 import new_code_cell, new_notebook

from tests.notebooks.rules import faults
from tests.notebooks.store import main, store

SHOW = """
import labkit, ipywidgets
from IPython.display import display
print("one"); print("two")
display(ipywidgets.IntSlider())
display({"image/png": "iVBORw0KGgo=", "text/plain": "a picture"}, raw=True)
"""


def write(path: Path, *sources: str) -> Path:
    cells = [new_code_cell(source, id=f"cell-{i}") for i, source in enumerate(sources)]
    nbformat.write(new_notebook(cells=cells), path)
    return path


def test_text_and_pictures_are_kept_and_a_second_run_changes_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "a.ipynb", SHOW, "41 + 1")
    assert main([str(path)]) == 0
    first = path.read_bytes()
    notebook = nbformat.read(path, as_version=4)
    assert list(faults(path.name, notebook)) == []
    show, answer = notebook.cells
    assert show.outputs[0].text == "one\ntwo\n"
    assert "IntSlider" in show.outputs[1].data["text/plain"]
    assert show.outputs[2].data == {"image/png": "iVBORw0KGgo=", "text/plain": "a picture"}
    assert answer.outputs[0].data == {"text/plain": "42"}
    assert (show.execution_count, answer.execution_count) == (1, 2)
    assert main([str(path)]) == 0
    assert path.read_bytes() == first


def test_a_cell_that_fails_stops_it_and_leaves_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a.ipynb", "1 / 0")
    before = path.read_bytes()
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        store(path)
    assert path.read_bytes() == before


def test_a_notebook_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nowhere.ipynb"]) == 2
    assert capsys.readouterr().err == "There is no notebook nowhere.ipynb\n"
