"""Kernels killed at random moments, again and again: no rank, server or folder is left."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1200)]

KERNEL = """
import random, time, torch, torch.distributed as dist, labkit
def work(how):
    x = torch.randn(300, 300)
    until = time.monotonic() + 0.3
    while time.monotonic() < until:
        x = (x @ x).clamp(-1, 1)
        if how == "talk":
            print("line")
        if how == "reduce":
            dist.all_reduce(x)
    if how == "fail" and dist.get_rank() == 1:
        raise ValueError
while True:
    how = random.choice(["compute", "talk", "reduce", "fail"])
    try:
        labkit.launch(work, how, ranks=random.randint(1, 4), threads=1, backend="gloo")
    except (labkit.RankFailed, labkit.Deadlock):
        pass
"""


def started_with(token: str) -> list[psutil.Process]:
    """Every process that has this environment, directly or from the kernel that started it."""
    return [
        process
        for process in psutil.process_iter(["environ"])
        if (process.info["environ"] or {}).get("LABKIT_SOAK") == token
    ]


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_nothing_is_left_of_killed_kernels(sig: signal.Signals, tmp_path: Path) -> None:
    environment = {**os.environ, "LABKIT_SOAK": str(tmp_path), "TMPDIR": str(tmp_path)}
    draw = random.Random(int(sig))
    for _ in range(15):
        kernel = subprocess.Popen(
            [sys.executable, "-c", KERNEL],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment,
        )  # fmt: skip
        time.sleep(draw.uniform(0.2, 8.0))
        kernel.send_signal(sig)
        kernel.wait()
    until = time.monotonic() + 10
    while time.monotonic() < until and (started_with(str(tmp_path)) or any(tmp_path.iterdir())):
        time.sleep(0.1)
    assert started_with(str(tmp_path)) == []
    assert list(tmp_path.iterdir()) == []


def test_interrupts_at_any_moment_leave_the_kernel_usable() -> None:
    code = """
import os, random, signal, threading, time, torch, torch.distributed as dist, labkit
signal.signal(signal.SIGINT, signal.default_int_handler)
def work():
    x = torch.ones(1000)
    for _ in range(200):
        dist.all_reduce(x)
        time.sleep(0.002)
draw = random.Random(0)
for i in range(40):
    stop = threading.Timer(draw.uniform(0.0, 1.0), os.kill, (os.getpid(), signal.SIGINT))
    stop.start()
    try:
        labkit.launch(work, ranks=2, threads=1, backend="gloo")
        time.sleep(2)
    except KeyboardInterrupt:
        pass
    stop.join()
    assert labkit.launch(dist.get_rank, ranks=2, backend="gloo").results == [0, 1], i
print("usable")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.stdout.endswith("usable\n"), done.stderr
