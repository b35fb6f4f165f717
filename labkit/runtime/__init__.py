"""Processes and what they say to each other: ranks from one call, recorded while they run."""

from labkit.runtime import faults
from labkit.runtime.failures import Deadlock, Mismatch, OutOfMemory, RankFailed, TimedOut
from labkit.runtime.launch import launch
from labkit.runtime.run import Run

__all__ = [
    "Deadlock",
    "Mismatch",
    "OutOfMemory",
    "RankFailed",
    "Run",
    "TimedOut",
    "faults",
    "launch",
]
