"""Times of work on a GPU: taken by the GPU, since the host only queues it.

On a CUDA device a call returns when its work is queued, and a future fires then, too. So a stamp
here is a CUDA event on the current stream, and an operation is complete where a side stream that
waits for it gets to. When the record is finished the events become times on the host's clock: one
event was recorded, and waited for, at a known moment.

Untried with NCCL until a machine with two GPUs has shown it; the arithmetic is tested with a
stand-in for the device.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import torch

from labkit.trace.log import Log, RankRecord, Stamp


class CudaLog(Log):
    """A log whose wall clock is the GPU's.

    Parameters
    ----------
    rank : global rank of the process that writes
    """

    def __init__(self, rank: int) -> None:
        self._host = 0  # wall ns at which `_zero` had happened
        self._zero: Any = None
        self._side: Any = None
        self._completed: dict[int, Any] = {}
        super().__init__(rank)

    def begin(self) -> None:
        self._side = torch.cuda.Stream()
        self._zero = _event()
        self._zero.synchronize()
        self._host = time.perf_counter_ns()
        super().begin()

    def stamp(self) -> Stamp:
        if self._zero is None:
            return super().stamp()
        # The event stands in for the wall clock until `finish`.
        return (_event(), time.thread_time_ns(), self.flops)

    def follow(self, op: int, work: Any) -> None:
        """Note when `work` is complete: a side stream waits for it, the current one does not."""
        with torch.cuda.stream(self._side):
            work.wait()
            self._completed[op] = _event()

    def finish(self) -> RankRecord:
        torch.cuda.synchronize()
        record = super().finish()
        torch.cuda.synchronize()
        return replace(record, done=self._completed).on_clock(self._wall)

    def _wall(self, event: Any) -> int:
        return self._host + round(float(self._zero.elapsed_time(event)) * 1e6)  # ms to ns


def _event() -> Any:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
