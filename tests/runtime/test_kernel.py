"""In a real Jupyter kernel: output of ranks, errors with the cell's own lines, interrupt, death."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager, start_new_kernel

SETUP = """
import os, time, torch, torch.distributed as dist, labkit
def go(fn, **options):
    return labkit.launch(fn, ranks=2, threads=1, backend="gloo", **options)
go(os.getpid).results and None
"""


class Kernel:
    """A kernel and what its cells say."""

    def __init__(self, manager: KernelManager, client: BlockingKernelClient) -> None:
        self.manager = manager
        self.client = client

    def run(self, code: str, timeout: float = 60) -> str:
        """Text of all outputs of a cell, errors too, without colours."""
        text: list[str] = []
        self.client.execute_interactive(
            code, timeout=timeout, output_hook=lambda m: text.append(_text(m))
        )
        return re.sub(r"\x1b\[[0-9;]*m", "", "".join(text))

    def ranks(self) -> list[psutil.Process]:
        kernel = psutil.Process(self.manager.provisioner.pid)
        return [rank for server in kernel.children() for rank in server.children()]


def _text(message: dict[str, Any]) -> str:
    content = message["content"]
    if message["msg_type"] == "stream":
        return str(content["text"])
    if message["msg_type"] == "error":
        return "\n".join(content["traceback"])
    return str(content.get("data", {}).get("text/plain", ""))


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    manager, client = start_new_kernel()
    it = Kernel(manager, client)
    it.run(SETUP)
    yield it
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def test_a_function_of_a_cell_runs_and_its_lines_reach_the_cell(kernel: Kernel) -> None:
    told = kernel.run("""
def say():
    print("this is rank", dist.get_rank())
    return dist.get_rank()
go(say).results""")
    assert "[rank 0] this is rank 0\n" in told
    assert "[rank 1] this is rank 1\n" in told
    assert told.endswith("[0, 1]")


def test_an_error_shows_the_cells_own_line_and_not_the_launcher(kernel: Kernel) -> None:
    told = kernel.run("""
def fail():
    if dist.get_rank() == 1:
        raise ValueError("only here")
    dist.barrier()
go(fail)""")
    assert told.startswith("RankFailed: rank 1 failed")
    assert re.search(r"cell \[\d+\], line 3, in fail\n +raise ValueError\(\"only here\"\)", told)
    assert "labkit/runtime" not in told


def test_a_timeout_shows_the_cells_line(kernel: Kernel) -> None:
    told = kernel.run("""
def hang():
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(2))
    time.sleep(30)
go(hang, timeout=2)""")
    assert re.search(r"rank 0: in all_reduce, called at cell \[\d+\], line 3", told)
    assert re.search(r"rank 1: running at cell \[\d+\], line 4 \(hang\)", told)


def test_the_place_of_an_event_is_in_the_cell(kernel: Kernel) -> None:
    told = kernel.run("""
def reduce():
    dist.all_reduce(torch.ones(2))
run = go(reduce)
from labkit.runtime.failures import place
event = next(e for e in run.trace.events if e.kind == "collective")
file, line = event.where.rsplit(":", 1)
place(file, int(line))""")
    assert re.search(r"cell \[\d+\], line 2", told)


def test_an_interrupt_ends_the_cell_within_two_seconds(kernel: Kernel) -> None:
    message = kernel.client.execute("go(lambda: time.sleep(60))")
    until = time.monotonic() + 20
    while len(kernel.ranks()) < 2:
        assert time.monotonic() < until
        time.sleep(0.05)
    time.sleep(0.5)
    ranks = kernel.ranks()
    began = time.monotonic()
    kernel.manager.interrupt_kernel()
    reply = kernel.client.get_shell_msg(timeout=10)
    took = time.monotonic() - began
    assert reply["parent_header"]["msg_id"] == message
    assert reply["content"]["ename"] == "KeyboardInterrupt"
    assert "its ranks were stopped" in "".join(reply["content"]["traceback"])
    assert len(reply["content"]["traceback"]) == 1
    assert took < 2
    assert not any(r.is_running() for r in ranks)
    assert kernel.run("go(dist.get_rank).results").endswith("[0, 1]")


def test_a_run_in_the_background_prints_nothing_into_later_cells(kernel: Kernel) -> None:
    kernel.run("run = go(lambda: print('quiet'), wait=False)")
    told = kernel.run("time.sleep(1.5); print('later')")
    assert told == "later\n"
    assert "[rank 0] quiet" in kernel.run("run.wait(); None")


def test_ranks_end_with_a_killed_kernel() -> None:
    manager, client = start_new_kernel()
    it = Kernel(manager, client)
    it.run(SETUP)
    client.execute("def deep():\n    x = torch.randn(3000, 3000)\n    while True: x @ x\ngo(deep)")
    until = time.monotonic() + 20
    while len(it.ranks()) < 2:
        assert time.monotonic() < until
        time.sleep(0.05)
    everyone = psutil.Process(manager.provisioner.pid).children(recursive=True)
    manager.signal_kernel(9)
    _, alive = psutil.wait_procs(everyone, timeout=5)
    client.stop_channels()
    manager.shutdown_kernel(now=True)
    assert alive == []
