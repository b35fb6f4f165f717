"""What the notebooks train: a small GPT, text that ships with Python, and the training itself."""

from labkit.lessons.data import ShardedSampler, Windows, text
from labkit.lessons.divergence import Difference, Divergence, compare
from labkit.lessons.history import History, Record
from labkit.lessons.model import GPT, GPTConfig
from labkit.lessons.train import Trained, train_data_parallel, train_one

__all__ = [
    "GPT",
    "Difference",
    "Divergence",
    "GPTConfig",
    "History",
    "Record",
    "ShardedSampler",
    "Trained",
    "Windows",
    "compare",
    "text",
    "train_data_parallel",
    "train_one",
]
