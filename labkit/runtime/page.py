"""One page a rank, shared with the launcher: what the rank's last operation was.

The rank writes, the launcher reads without the rank's help, so it can be read when the rank hangs
in C++ or has died there. It is a file in the run's private folder, mapped into memory by both.
"""

from __future__ import annotations

import mmap
from pathlib import Path

_SIZE = 4096


class Page:
    """The writer's side.

    Parameters
    ----------
    path : the file; made if it is not there
    """

    def __init__(self, path: Path) -> None:
        with path.open("w+b") as file:
            file.write(bytes(_SIZE))  # a full disk says so here, not by a signal later
            file.flush()
            self._map = mmap.mmap(file.fileno(), _SIZE)

    def write(self, text: str) -> None:
        """Replace what the page says (the first 4 kB of it)."""
        data = text.encode("utf-8", "replace")[: _SIZE - 4]
        self._map[4 : 4 + len(data)] = data
        self._map[:4] = len(data).to_bytes(4, "little")


def read(path: Path) -> str:
    """What the page at `path` says; "" if it was never written."""
    try:
        data = path.read_bytes()
    except OSError:
        return ""
    size = int.from_bytes(data[:4], "little")
    return data[4 : 4 + size].decode("utf-8", "replace")
