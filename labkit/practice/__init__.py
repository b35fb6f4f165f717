"""What a learner does, and the progress that it leaves."""

from labkit.practice.progress import Progress

__all__ = ["Progress"]
