"""Run the notebooks and store what they print: ``make store``, or ``store.py NOTEBOOK …``.

The one way in which outputs come into a notebook. Text and PNG are kept, widget state and times are
not, so that a second run changes nothing that did not change.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.notebooks.rules import KEPT  # noqa: E402

METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"file_extension": ".py", "mimetype": "text/x-python", "name": "python"},
}


def store(path: Path) -> None:
    """Run one notebook from top to bottom and write its outputs into it.

    Raises
    ------
    nbclient.exceptions.CellExecutionError : a cell failed; the file is left as it was
    """
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=120,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(path.parent)}},
    )
    with tempfile.TemporaryDirectory() as home:  # nobody has done anything yet
        client.execute(env={**os.environ, "LABKIT_HOME": home})
    clean(notebook)
    nbformat.write(notebook, path)


def clean(notebook: NotebookNode) -> None:
    """Drop what differs from run to run, from machine to machine, or shows nowhere."""
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in notebook.cells:
        for name in ("execution", "collapsed", "scrolled"):
            cell.metadata.pop(name, None)
        if cell.cell_type != "code":
            continue
        for output in cell.outputs:
            for kind in set(output.get("data", {})) - KEPT:
                del output["data"][kind]
            if "metadata" in output:
                output["metadata"] = nbformat.from_dict({})
        cell.outputs = [o for o in cell.outputs if o.get("data") or "data" not in o]


def main(arguments: list[str]) -> int:
    paths = [Path(name) for name in arguments] or sorted((ROOT / "notebooks").glob("*.ipynb"))
    if missing := [path for path in paths if not path.is_file()]:
        print(f"There is no notebook {missing[0]}", file=sys.stderr)
        return 2
    if not paths:
        print("There is no notebook in notebooks/", file=sys.stderr)
        return 2
    for path in paths:
        start = time.monotonic()
        store(path)
        print(f"{path.name}: {time.monotonic() - start:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
