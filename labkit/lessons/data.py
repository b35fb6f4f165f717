"""Text as bytes, cut into windows, and a sampler that shares them out among ranks.

The text ships with Python (its own documentation, about half a million characters), so a lesson
needs no download; a path brings one's own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

TAILS = ("uneven", "drop", "pad")


def text(path: str | Path | None = None) -> Tensor:
    """The bytes of a text as tokens.

    Parameters
    ----------
    path : a file in UTF-8; None: the documentation that ships with Python

    Returns
    -------
    int64 tensor [bytes], values 0 to 255

    Raises
    ------
    FileNotFoundError, IsADirectoryError : `path` is no file
    ValueError : `path` is empty or not UTF-8
    ModuleNotFoundError : this Python comes without its documentation
    """
    raw = _documentation() if path is None else _file(Path(path))
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8).long()


def _documentation() -> bytes:
    try:
        from pydoc_data.topics import topics
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "this Python comes without pydoc_data.topics, the text of the lessons; install "
            "Python's standard library in full, or pass a path to a text of your own"
        ) from error
    return "\n".join(topics[name] for name in sorted(topics)).encode()


def _file(path: Path) -> bytes:
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder: give one text file")
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist: give a text file in UTF-8")
    raw = path.read_bytes()
    if not raw:
        raise ValueError(f"{path} is empty: give a text file in UTF-8")
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 (byte {error.start}): save it as UTF-8") from error
    return raw


@dataclass(frozen=True)
class Windows:
    """A text cut into windows that do not overlap: every token is a target once.

    Parameters
    ----------
    tokens : int64 tensor [n]
    context : tokens in a window
    """

    tokens: Tensor
    context: int

    def __post_init__(self) -> None:
        if self.context < 1:
            raise ValueError(f"context={self.context}: give at least 1 token")
        if len(self.tokens) <= self.context:
            raise ValueError(
                f"the text has {len(self.tokens)} bytes, context={self.context} needs "
                f"{self.context + 1}: give a longer text or a shorter context"
            )

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.context

    def batch(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        """Windows as (tokens, targets), both [len(indices), context]; targets are one token on."""
        on = self.tokens.device
        start = torch.tensor(indices, dtype=torch.int64, device=on)[:, None] * self.context
        at = start + torch.arange(self.context, device=on)  # [b, 1] + [context]
        return self.tokens[at], self.tokens[at + 1]


@dataclass(frozen=True)
class ShardedSampler:
    """Which items this rank reads, in an order that all ranks draw alike.

    In every epoch the items are shuffled by `seed` and the epoch's number, which the caller
    passes (it cannot be forgotten), and dealt out like cards: the ranks' shares are a partition.

    Parameters
    ----------
    items : number of items in all
    rank, ranks : this rank, and how many there are
    shuffle : False: in their own order
    tail : what becomes of a remainder that does not deal out evenly.
        "uneven": every item once, so that some ranks hold one more (weigh their gradients);
        "drop": the last items of the order are left out; "pad": its first are dealt again.
    """

    items: int
    rank: int
    ranks: int
    seed: int = 0
    shuffle: bool = True
    tail: str = "uneven"

    def __post_init__(self) -> None:
        if self.items < 1:
            raise ValueError(f"items={self.items}: there is nothing to share out")
        if not 0 <= self.rank < self.ranks:
            raise ValueError(f"rank={self.rank} is not one of ranks={self.ranks}, counted from 0")
        if self.tail not in TAILS:
            raise ValueError(f"tail={self.tail!r}: use one of {', '.join(TAILS)}")
        if self.tail == "drop" and self.items < self.ranks:
            raise ValueError(
                f"tail='drop' leaves nothing of {self.items} items on {self.ranks} ranks"
            )

    def order(self, epoch: int = 0) -> list[int]:
        """The items of an epoch, of all ranks together, tail already dropped or padded."""
        order = self._drawn(epoch)
        if self.tail == "drop":
            return order[: self.items - self.items % self.ranks]
        if self.tail == "pad":
            missing = -self.items % self.ranks
            return order + [order[i % self.items] for i in range(missing)]
        return order

    def indices(self, epoch: int = 0) -> list[int]:
        """This rank's items of an epoch."""
        return self.order(epoch)[self.rank :: self.ranks]

    def batches(self, batch: int, epoch: int = 0) -> Iterator[list[int]]:
        """This rank's share of each global batch of `batch` items: as many shares on every rank.

        The global batches do not depend on the number of ranks. A share may be smaller on some
        ranks, or empty, where `tail` is "uneven"; "drop" and "pad" need `batch` to divide.
        """
        if batch < 1:
            raise ValueError(f"batch={batch}: give at least 1 item")
        if self.tail != "uneven" and batch % self.ranks:
            raise ValueError(
                f"batch={batch} does not deal out to {self.ranks} ranks evenly, as "
                f"tail={self.tail!r} promises: take a multiple of {self.ranks}, or tail='uneven'"
            )
        order = self.order(epoch)
        for start in range(0, len(order), batch):
            yield order[start : start + batch][self.rank :: self.ranks]

    def dropped(self, epoch: int = 0) -> list[int]:
        """Items that no rank reads in this epoch."""
        return sorted(set(range(self.items)) - set(self.order(epoch)))

    def repeated(self, epoch: int = 0) -> list[int]:
        """Items that are read more than once in this epoch."""
        return sorted(i for i, times in Counter(self.order(epoch)).items() if times > 1)

    def _drawn(self, epoch: int) -> list[int]:
        if not self.shuffle:
            return list(range(self.items))
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + epoch) % 2**63)
        return torch.randperm(self.items, generator=generator).tolist()
