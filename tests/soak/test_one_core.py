"""Every notebook in Binder's envelope: one core, 90 seconds, 1.2 GB for everything together."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))

RUN = """
import sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=120, resources={"metadata": {"path": sys.argv[2]}}).execute()
"""


def proportional(process: psutil.Process) -> float:
    """Memory (PSS) of a process and all below it, in MB: what is shared counts once."""
    total = 0.0
    for one in [process, *process.children(recursive=True)]:
        try:
            total += one.memory_full_info().pss / 1e6
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return total


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_runs_on_one_core_in_time_and_memory(path: Path) -> None:
    core = min(os.sched_getaffinity(0))
    began = time.monotonic()
    runner = subprocess.Popen(
        ["taskset", "-c", str(core), sys.executable, "-c", RUN, str(path), str(path.parent)]
    )
    peak = [0.0]

    def watch() -> None:
        while runner.poll() is None:
            try:
                peak[0] = max(peak[0], proportional(psutil.Process(runner.pid)))
            except psutil.NoSuchProcess:
                return
            time.sleep(0.2)

    watcher = threading.Thread(target=watch)
    watcher.start()
    assert runner.wait(300) == 0
    watcher.join()
    took = time.monotonic() - began
    print(f"{path.stem}: {took:.0f} s on one core, {peak[0]:.0f} MB at the peak")
    assert took < 90
    assert peak[0] < 1200
