"""What a committed notebook has to keep to, and what is kept of a cell's output."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from IPython.core.inputtransformer2 import TransformerManager
from nbformat import NotebookNode

WORDS = 1200  # of a lesson's core: what is read in half an hour
CELLS = 12  # code cells of a lesson's core
LINES = 30  # of one code cell

# They ask or draw over what was drawn: such a cell cannot be run unattended and compared.
UNATTENDED = {"input", "clear_output", "interact", "Output"}

# Widget state is left out: GitHub shows none, and a stored view is of a kernel that is gone.
KEPT = {"text/plain", "text/html", "text/markdown", "text/latex", "image/png"}


def lesson(name: str) -> bool:
    """Whether a file is one of the lessons, 01 to 07, which have a core and a Further."""
    return re.match(r"0[1-7]_", name) is not None


def core(notebook: NotebookNode) -> list[NotebookNode]:
    """The cells before the heading "Further"."""
    cells: list[NotebookNode] = []
    for cell in notebook.cells:
        if is_further(cell):
            break
        cells.append(cell)
    return cells


def is_further(cell: NotebookNode) -> bool:
    return cell.cell_type == "markdown" and bool(re.search(r"(?m)^# *#* *Further\b", cell.source))


def words(cells: list[NotebookNode]) -> int:
    """How many words a reader meets outside code; links count by their text."""
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    text = re.sub(r"```.*?```|<[^>]+>|\]\([^)]*\)|!\[[^]]*", " ", text, flags=re.DOTALL)
    return len(re.findall(r"[^\W_][\w'’.,×%-]*", text))


def faults(name: str, notebook: NotebookNode) -> Iterator[str]:
    """Everything that is wrong with a notebook, a line each."""
    kernel = notebook.metadata.get("kernelspec", {}).get("name")
    if kernel != "python3":
        yield f"the kernel is {kernel!r}, not 'python3'"
    if "widgets" in notebook.metadata:
        yield "widget state is stored: make store drops it"
    ids = [cell.get("id") for cell in notebook.cells]
    for twice in sorted({str(i) for i in ids if ids.count(i) > 1}):
        yield f"two cells have the id {twice}"
    for cell in notebook.cells:
        if cell.cell_type == "code":
            for fault in cell_faults(cell):
                yield f"cell {cell.get('id')}: {fault}"
    if lesson(name):
        yield from lesson_faults(notebook)


def cell_faults(cell: NotebookNode) -> Iterator[str]:
    tags = cell.metadata.get("tags", [])
    if not cell.source.strip():
        yield "it is empty"
        return
    if cell.execution_count is None:
        yield "it was never run: make store"
    if "execution" in cell.metadata:
        yield "times are stored: make store"
    if (lines := len(cell.source.splitlines())) > LINES:
        yield f"{lines} lines, more than {LINES}"
    failed = any(output.output_type == "error" for output in cell.outputs)
    if failed and "raises-exception" not in tags:
        yield "it failed when it was stored"
    if not failed and "raises-exception" in tags:
        yield "it is to raise an exception, and stores none"
    if "nbval-skip" in tags or re.search(r"(?m)^# *NBVAL_(SKIP|IGNORE)", cell.source, re.I):
        yield "nbval is told to pass over it"
    for output in cell.outputs:
        for kind in sorted(set(output.get("data", {})) - KEPT):
            yield f"{kind} is stored: make store drops it"
    yield from (f"{name} cannot run unattended" for name in sorted(attended(cell.source)))


def attended(source: str) -> set[str]:
    """The names in a cell's code that wait for a person or draw over what was drawn."""
    tree = ast.parse(TransformerManager().transform_cell(source))
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    used |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    used |= {node.name for node in ast.walk(tree) if isinstance(node, ast.alias)}
    return used & UNATTENDED


def lesson_faults(notebook: NotebookNode) -> Iterator[str]:
    if sum(map(is_further, notebook.cells)) != 1:
        yield 'a lesson has one heading "Further"'
    first = core(notebook)
    if (count := words(first)) > WORDS:
        yield f"the core has {count} words, more than {WORDS}"
    if (count := sum(cell.cell_type == "code" for cell in first)) > CELLS:
        yield f"the core has {count} code cells, more than {CELLS}"
