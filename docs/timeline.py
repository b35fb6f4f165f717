"""Draw the README's picture, one data-parallel step on four ranks: ``python docs/timeline.py``."""

from __future__ import annotations

from pathlib import Path

import labkit
from labkit.lessons import Trained, train_data_parallel


def train() -> Trained:
    """Forty steps of the small GPT, with buckets small enough for several to be seen."""
    return train_data_parallel(steps=40, bucket_mb=2)


if __name__ == "__main__":
    run = labkit.launch(train, ranks=4, backend="gloo", threads=1, seed=0)
    # The shortest step is the one that other programs on this machine disturbed least.
    quiet = min(run.trace.steps[2:], key=lambda step: step.duration)
    picture = run.timeline(step=quiet.index, title="Data parallelism on four ranks")
    picture.save_png(Path(__file__).with_suffix(".png"))
