"""The techniques of distributed training, each one short file of plain torch."""

from labkit.techniques.agreement import any_rank, global_mean
from labkit.techniques.data_parallel import DataParallel, average_each, average_flat
from labkit.techniques.ring import ring_all_reduce

__all__ = [
    "DataParallel",
    "any_rank",
    "average_each",
    "average_flat",
    "global_mean",
    "ring_all_reduce",
]
