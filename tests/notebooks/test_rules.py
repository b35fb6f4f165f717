"""Every notebook keeps to the rules, and a notebook that breaks one is caught."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tests.notebooks.rules import attended, core, faults, words

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_keeps_to_the_rules(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert list(faults(path.name, notebook)) == []


def good() -> NotebookNode:
    """A small lesson that keeps to every rule."""
    error = new_output("error", ename="ValueError", evalue="no", traceback=[])
    notebook = new_notebook(metadata={"kernelspec": {"name": "python3", "display_name": "Python"}})
    notebook.cells = [
        new_markdown_cell("# A lesson\n\nFive words stand here now.", id="title"),
        new_code_cell("%time\n1 + 1", id="sum", execution_count=1),
        new_code_cell("raise ValueError('no')", id="raise", execution_count=2, outputs=[error],
                      metadata={"tags": ["raises-exception"]}),
        new_markdown_cell("## Further\n\nMore.", id="further"),
        new_code_cell("2 + 2", id="more", execution_count=3,
                      outputs=[new_output("display_data", {"text/plain": "4"})]),
    ]  # fmt: skip
    return notebook


def never_run(notebook: NotebookNode) -> None:
    notebook.cells[1].execution_count = None


def another_kernel(notebook: NotebookNode) -> None:
    notebook.metadata.kernelspec.name = "my-venv"


def widget_state(notebook: NotebookNode) -> None:
    notebook.metadata.widgets = {}


def widget_view(notebook: NotebookNode) -> None:
    notebook.cells[4].outputs[0].data["application/vnd.jupyter.widget-view+json"] = {}


def two_ids(notebook: NotebookNode) -> None:
    notebook.cells[1].id = "more"


def silent_exception(notebook: NotebookNode) -> None:
    notebook.cells[2].outputs = []


def stored_failure(notebook: NotebookNode) -> None:
    notebook.cells[2].metadata.tags = []


def passed_over(notebook: NotebookNode) -> None:
    notebook.cells[1].source = "# NBVAL_SKIP\n1 + 1"


def question(notebook: NotebookNode) -> None:
    notebook.cells[1].source = "name = input('who?')"


def output_widget(notebook: NotebookNode) -> None:
    notebook.cells[1].source = "import ipywidgets as w\nw.Output()"


def times(notebook: NotebookNode) -> None:
    notebook.cells[1].metadata.execution = {"shell.execute_reply": "now"}


def long_cell(notebook: NotebookNode) -> None:
    notebook.cells[1].source = "\n".join(f"x = {i}" for i in range(31))


def no_further(notebook: NotebookNode) -> None:
    notebook.cells[3].source = "### More"


def long_core(notebook: NotebookNode) -> None:
    notebook.cells[0].source += " word" * 1200


def many_cells(notebook: NotebookNode) -> None:
    for i in range(11):
        notebook.cells.insert(1, new_code_cell("1", id=f"extra-{i}", execution_count=1))


def test_a_good_notebook_passes() -> None:
    assert list(faults("01_lesson.ipynb", good())) == []


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (never_run, "cell sum: it was never run"),
        (another_kernel, "the kernel is 'my-venv'"),
        (widget_state, "widget state is stored"),
        (widget_view, "widget-view+json is stored"),
        (two_ids, "two cells have the id more"),
        (silent_exception, "is to raise an exception, and stores none"),
        (stored_failure, "it failed when it was stored"),
        (passed_over, "nbval is told to pass over it"),
        (question, "input cannot run unattended"),
        (output_widget, "Output cannot run unattended"),
        (times, "times are stored"),
        (long_cell, "31 lines"),
        (no_further, 'one heading "Further"'),
        (long_core, "the core has 1207 words"),
        (many_cells, "the core has 13 code cells"),
    ],
)
def test_a_broken_rule_is_named(spoil: Callable[[NotebookNode], None], said: str) -> None:
    notebook = good()
    spoil(notebook)
    (found,) = faults("01_lesson.ipynb", notebook)
    assert said in found


def test_only_lessons_have_a_core() -> None:
    notebook = good()
    no_further(notebook)
    assert list(faults("00_start_here.ipynb", notebook)) == []


def test_words_are_what_is_read() -> None:
    text = "One [two](https://three.example/four) `five`.\n\n```\nsix seven\n```\n![no](a.png) 8 %"
    assert words([new_markdown_cell(text)]) == 4
    assert words(core(good())) == 7


def test_a_name_in_a_text_waits_for_nobody() -> None:
    assert attended("print('input')  # interact\nx.outputs") == set()
    assert attended("from IPython.display import clear_output") == {"clear_output"}
