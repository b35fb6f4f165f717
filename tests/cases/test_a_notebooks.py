"""Faults that people met when they ran ranks from notebooks: the right value of each."""

from __future__ import annotations

import importlib
import io
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
import warnings
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist

import labkit

pytestmark = pytest.mark.usefixtures("no_process_left")


def script(code: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run `code` as a program without a file, as a notebook's cells are."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True, text=True, timeout=90, **options,
    )  # fmt: skip


def total() -> float:
    x = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(x)
    return x.item()


def test_a1_a_function_of_a_cell_runs_on_ranks() -> None:
    done = script("""
        import labkit, torch.distributed as dist
        def ten_times_rank():
            return dist.get_rank() * 10
        print(labkit.launch(ten_times_rank, ranks=2, backend="gloo").results)
    """)
    assert done.stdout == "[0, 10]\n"
    assert done.stderr == ""


def test_a2_what_cannot_be_packed_is_told_at_once() -> None:
    began = time.monotonic()
    with pytest.raises(TypeError, match="argument 1 of <lambda>, a generator"):
        labkit.launch(lambda x: x, (i for i in range(3)), ranks=2)
    assert time.monotonic() - began < 1


class Stubborn:
    """Packs well, and cannot be unpacked."""

    def __reduce__(self) -> Any:
        return _refuse, (type(self).__name__,)


def _refuse(name: str) -> None:
    raise OSError(f"{name} wants a group that is not there yet")


def test_a2_what_cannot_be_unpacked_is_told_with_the_ranks_own_traceback() -> None:
    with pytest.raises(labkit.RankFailed) as caught:
        labkit.launch(lambda x: x, Stubborn(), ranks=2, backend="gloo")
    assert "took its function and arguments apart" in str(caught.value)
    assert "OSError: Stubborn wants a group" in caught.value.traceback
    assert "_refuse" in caught.value.traceback


def test_a2_a_class_of_the_main_program_travels() -> None:
    done = script("""
        import labkit
        def main():
            class OnlyHere:
                x = 3
            print(labkit.launch(lambda a: a.x, OnlyHere(), ranks=2, backend="gloo").results)
        if __name__ == "__main__":
            main()
    """)
    assert done.stdout == "[3, 3]\n"


def test_a3_a_rank_sees_a_module_as_it_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "state_a3.py").write_text("V = 0\n\ndef look():\n    return V\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    state = importlib.import_module("state_a3")
    state.V = 7
    assert labkit.launch(state.look, ranks=2, backend="gloo").results == [0, 0]
    mine = 7  # while a function's own variables travel with it
    assert labkit.launch(lambda: mine, ranks=2, backend="gloo").results == [7, 7]


INTERRUPTED = """
import os, signal, sys, time, labkit
def plain():
    while True:
        time.sleep(0.05)
def catch_all():
    while True:
        try:
            time.sleep(0.05)
        except BaseException:
            pass
signal.signal(signal.SIGINT, signal.default_int_handler)
labkit.launch(os.getpid, ranks=2, backend="gloo")
print("ready", flush=True)
try:
    labkit.launch({work}, ranks=2, backend="gloo")
except KeyboardInterrupt:
    print("interrupted", flush=True)
print(labkit.launch(lambda: 1, ranks=2, backend="gloo").results, flush=True)
time.sleep(30)
"""


@pytest.mark.parametrize("whole_group", [False, True], ids=["kernel", "group"])
@pytest.mark.parametrize("work", ["plain", "catch_all"])
def test_a4_an_interrupt_ends_the_cell_and_every_rank(work: str, whole_group: bool) -> None:
    kernel = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED.format(work=work)],
        stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        assert kernel.stdout is not None
        assert kernel.stdout.readline() == "ready\n"
        until = time.monotonic() + 20
        ranks: list[psutil.Process] = []
        while len(ranks) < 2 and time.monotonic() < until:
            time.sleep(0.1)
            servers = psutil.Process(kernel.pid).children()
            ranks = [rank for server in servers for rank in server.children()]
        assert len(ranks) == 2
        time.sleep(0.5)
        sent = time.monotonic()
        (os.killpg if whole_group else os.kill)(kernel.pid, signal.SIGINT)
        assert kernel.stdout.readline() == "interrupted\n"
        assert time.monotonic() - sent < 2
        assert not any(r.is_running() for r in ranks)
        assert kernel.stdout.readline() == "[1, 1]\n"  # the kernel goes on
    finally:
        kernel.kill()
        kernel.communicate()


def test_a5_the_first_failure_is_told_and_nobody_waits() -> None:
    def work() -> None:
        if dist.get_rank() == 1:
            raise ValueError("rank 1 only")
        dist.all_reduce(torch.ones(1))

    began = time.monotonic()
    with pytest.raises(labkit.RankFailed, match="ValueError: rank 1 only") as caught:
        labkit.launch(work, ranks=3, timeout=60, backend="gloo")
    assert caught.value.rank == 1
    assert time.monotonic() - began < 10


def test_a6_a_taken_port_and_a_second_run_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", str(taken.getsockname()[1]))
        first = labkit.launch(total, ranks=2, wait=False, backend="gloo")
        second = labkit.launch(total, ranks=2, wait=False, backend="gloo")
        assert [*first.results, *second.results] == [3.0] * 4


def test_a7_a_host_name_that_does_not_resolve_does_no_harm() -> None:
    done = script("""
        import ctypes, os, socket, sys
        new_user, new_names = 0x10000000, 0x04000000
        flags = new_names if os.getuid() == 0 else new_names | new_user
        if ctypes.CDLL(None, use_errno=True).unshare(flags):
            sys.exit(f"no name space of its own: {os.strerror(ctypes.get_errno())}")
        socket.sethostname("no-such-host-xyz")
        import labkit, torch, torch.distributed as dist
        def total():
            x = torch.tensor([dist.get_rank() + 1.0])
            dist.all_reduce(x)
            return socket.gethostname(), x.item()
        run = labkit.launch(total, ranks=2, backend="gloo")
        print(run.results, run.output)
    """)
    assert done.stderr == ""
    assert done.stdout == f"{[('no-such-host-xyz', 3.0)] * 2} ['', '']\n"


def test_a7_the_users_own_interface_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    run = labkit.launch(lambda: os.environ["GLOO_SOCKET_IFNAME"], ranks=2, backend="gloo")
    assert run.results == ["lo", "lo"]


def test_a8_a_group_that_cannot_be_made_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "no-such-interface")
    with pytest.raises(labkit.RankFailed) as caught:
        labkit.launch(total, ranks=2, backend="gloo", timeout=20)
    text = str(caught.value)
    assert "while it joined the group" in text
    assert text.count("no-such-interface") == 1


def test_a9_what_ranks_print_reaches_the_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = io.StringIO()
    monkeypatch.setattr(sys, "stdout", cell)

    def say() -> None:
        print("line of", dist.get_rank())
        dist.barrier()
        if dist.get_rank() == 1:
            raise ValueError

    with pytest.raises(labkit.RankFailed):
        labkit.launch(say, ranks=3, backend="gloo")
    lines = [line for line in cell.getvalue().splitlines() if "line of" in line]
    assert sorted(lines) == [f"[rank {r}] line of {r}" for r in range(3)]


def test_a10_a_world_of_one_out_of_two_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for name, value in {"RANK": 0, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("MASTER_PORT", str(port))
    began = time.monotonic()
    with pytest.raises(TimeoutError, match="1/2"):
        labkit.launch(total, timeout=4, backend="gloo")
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("ranks", [1, 4])
def test_a11_ranks_share_the_cores(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    share = max(1, len(os.sched_getaffinity(0)) // ranks)
    run = labkit.launch(torch.get_num_threads, ranks=ranks, backend="gloo")
    assert run.results == [share] * ranks
    monkeypatch.setenv("OMP_NUM_THREADS", "3")  # the user's word wins
    run = labkit.launch(torch.get_num_threads, ranks=ranks, backend="gloo")
    assert run.results == [3] * ranks


def test_a12_a_file_edited_after_its_import_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "edited_a12.py"
    file.write_text("def value():\n    return 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("edited_a12")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert labkit.launch(module.value, ranks=2, backend="gloo").results == [1, 1]
    file.write_text("def value():\n    return 22\n")
    with pytest.warns(RuntimeWarning, match="edited_a12.py has changed since"):
        assert labkit.launch(module.value, ranks=2, backend="gloo").results == [22, 22]
    importlib.reload(module)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert labkit.launch(module.value, ranks=2, backend="gloo").results == [22, 22]
    assert module.value() == 22


def test_a12_a_file_edited_before_the_first_launch_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)  # as in a kernel
    file = tmp_path / "early_a12.py"
    file.write_text("def value():\n    return 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("early_a12")
    file.write_text("def value():\n    return 22\n")
    with pytest.warns(RuntimeWarning, match="early_a12.py has changed since"):
        assert labkit.launch(module.value, ranks=2, backend="gloo").results == [22, 22]
