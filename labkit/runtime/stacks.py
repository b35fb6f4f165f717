"""Where a rank is, told without its help: the stack that a signal makes it write.

faulthandler writes from inside the signal, so a rank that hangs in C++ is seen too.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from labkit.runtime import travel
from labkit.runtime.failures import place

_STACK_LINE = re.compile(r'File "(.+)", line (\d+) in (.+)')


def ask(folder: Path, pids: Mapping[int, int]) -> dict[int, str]:
    """Where each live rank is: a word for what it is in, and the learner's own line.

    Parameters
    ----------
    folder : the run's folder
    pids : process numbers of the ranks to ask, by rank
    """
    if hasattr(signal, "SIGUSR1"):
        for pid in pids.values():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGUSR1)
    paths = {rank: folder / f"rank-{rank}.stack" for rank in pids}
    until = time.monotonic() + 0.5
    while time.monotonic() < until and not all(_is_whole(p) for p in paths.values()):
        time.sleep(0.01)
    found = {rank: last(folder, rank) for rank in pids}
    return {rank: text for rank, text in found.items() if text}


def last(folder: Path, rank: int) -> str:
    """What a rank's main thread was doing when it last wrote its stack; "" if it never did."""
    path = folder / f"rank-{rank}.stack"
    with contextlib.suppress(OSError):
        thread = path.with_suffix(".thread").read_text()
        return _describe(path.read_text("utf-8", "replace"), thread)
    return ""


def _is_whole(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except OSError:
        return False


def _describe(text: str, thread: str) -> str:
    """What the main thread of a faulthandler dump is doing, innermost frame first."""
    blocks = re.split(r"\n(?=Thread|Current thread)", text)
    block = next((b for b in blocks if re.match(rf"\S*\s*(thread )?0x0*{thread}\b", b, re.I)), None)
    frames = _STACK_LINE.findall(block or blocks[0])
    inside = ""
    for file, line, name in frames:
        if "/torch/distributed/" in file and not name.startswith("wrapper"):
            inside = name
        elif not file.startswith("<frozen ") and not travel.is_installed(file):
            where = place(file, int(line))
            return f"in {inside}, called at {where}" if inside else f"running at {where} ({name})"
        elif name == "_wait_for_threads":
            return "waiting for threads that its function has started"
    return f"in {inside}" if inside else ""
