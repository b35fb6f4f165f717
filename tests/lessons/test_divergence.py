"""Two runs compared: where they part, how far, and what the records show of why."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import labkit
from labkit.lessons import History, Record, compare
from labkit.lessons.history import BEFORE

STEPS, BATCH = 4, 24


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 16), nn.GELU(), nn.Linear(16, 4))


def batches() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(BATCH, 12, generator=generator) for _ in range(STEPS)]


def train(fault: str = "", keep: Any = range(BEFORE, STEPS), rank: int = 0, ranks: int = 1,
          shards: int = 1, gradients: bool = True) -> Record:  # fmt: skip
    """Data-parallel training with a fault; on one rank, the shards one after the other."""
    if dist.is_initialized():
        rank, ranks = dist.get_rank(), dist.get_world_size()
    model = net()
    if fault == "missing broadcast" and rank == 1:
        torch.manual_seed(7)
        nn.init.normal_(model[0].weight)
    if fault == "wide":
        model = nn.Sequential(nn.Linear(12, 17), nn.GELU(), nn.Linear(17, 4))
    history = History(model, keep, gradients)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    if fault == "momentum":
        for p in model.parameters() if rank == 1 else ():
            optimizer.state[p]["momentum_buffer"] = torch.full_like(p, 0.1)
    for step, batch in enumerate(batches()):
        optimizer.zero_grad()
        pieces = shards if ranks == 1 else 1
        for piece in range(pieces):
            at, of = (rank, ranks) if ranks > 1 else (piece, shards)
            part = batch[::of] if fault == "same shard" else batch[at::of]
            (model(part).pow(2).mean() / pieces).backward()
        for p in model.parameters() if ranks > 1 else ():
            assert p.grad is not None
            dist.all_reduce(p.grad)
            if fault != "sum":
                p.grad /= ranks
        if fault == "nan" and step == 2 and rank == 1:
            model[2].bias.grad[1] = float("nan")  # type: ignore[index]
        if fault == "one parameter" and step == 1:
            model[2].bias.grad *= 1.5
        optimizer.step()
        history.note(step)
    return history.record()


def run(ranks: int, fault: str = "", **options: Any) -> Any:
    return labkit.launch(
        partial(train, fault, **options), ranks=ranks, threads=1, seed=0, timeout=60, trace=False
    )


@pytest.fixture(scope="module")
def two() -> Any:
    return run(2)


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_equal_bits_are_told_as_equal(two: Any) -> None:
    found = compare(two, run(2))
    assert found.equal
    assert (found.first, found.largest, found.explained, found.findings) == (None, None, None, ())
    assert str(found) == "Equal, bit for bit."


def test_the_reference_that_adds_in_the_same_order_is_equal(two: Any) -> None:
    assert compare(train(shards=2), two).equal


def test_another_number_of_ranks_is_explained_by_reordering(two: Any) -> None:
    found = compare(two, run(4), terms=BATCH)
    assert found.first is not None
    assert found.largest is not None
    assert (found.first.step, found.first.what, found.explained) == (0, "gradient", True)
    assert 0 < found.largest.of_largest < 1e-5  # type: ignore[operator]
    assert "The weights before it are equal bit for bit. Reordering is enough" in str(found)
    assert "24 numbers added in two orders may differ by 2.7e-06" in str(found)


def test_a_sum_in_place_of_a_mean_is_a_factor_of_the_number_of_ranks(two: Any) -> None:
    four = run(4)
    found = compare(four, run(4, "sum"))
    assert found.explained is False
    assert "4.00 times those of run a, as many as it has ranks: so much is a sum beside a mean" in (
        str(found)
    )
    assert "is a mean beside a sum" in str(compare(run(2, "sum"), two))


def test_weights_that_were_never_sent_round_differ_before_the_first_step(two: Any) -> None:
    found = compare(two, run(2, "missing broadcast"))
    assert found.first is not None
    assert (found.first.step, found.first.rank, found.first.what) == (BEFORE, 1, "weight")
    assert found.explained is False
    assert found.findings == (
        "The runs began with other weights.",
        "One parameter only, of 4: 0.weight.",
        "On rank 1 only, of 2.",
        "Replicas of run b differ among themselves before the first step: weight of 0.weight, "
        "ranks 0, 1 first.",
    )


def test_one_ranks_momentum_shows_as_another_update_after_equal_gradients() -> None:
    found = compare(run(3), run(3, "momentum"))
    assert found.first is not None
    assert (found.first.step, found.first.rank, found.first.what) == (0, 1, "weight")
    assert "So are its gradients: the update itself differs, by the optimizer's state or" in (
        str(found)
    )
    assert (
        "Replicas of run b differ among themselves from step 0 on: weight of 0.weight, rank 1 "
        "first. Their gradients of that step are equal: the update differs."
    ) in str(found)
    assert found.explained is False


def test_every_rank_the_same_shard_leaves_equal_replicas_that_reordering_does_not_explain() -> None:
    found = compare(train(shards=2), run(2, "same shard"))
    assert found.explained is False
    assert "More than reordering explains" in str(found)
    assert "Replicas" not in str(found)
    assert "4 of 4 parameters differ there." in str(found)


def test_one_parameter_is_named(two: Any) -> None:
    found = compare(two, run(2, "one parameter"))
    assert found.first is not None
    assert (found.first.step, found.first.parameter) == (1, "2.bias")
    assert found.first.index == (0,)
    assert "One parameter only, of 4: 2.bias." in str(found)


def test_what_is_not_finite_is_told_with_its_place() -> None:
    found = compare(run(3), run(3, "nan"))
    assert found.first is not None
    assert (found.first.step, found.first.rank, found.first.index) == (2, 1, (1,))
    assert (found.first.ulps, found.first.of_largest) == (None, None)
    assert "Run b holds numbers that are not finite from step 2 on: gradient of 2.bias, rank 1" in (
        str(found)
    )
    assert "Not all gradients of this step are finite." in str(found)
    assert compare(run(3, "nan"), run(3, "nan")).equal  # NaN has bits, too


def test_without_the_numbers_it_is_told_which_step_to_keep(two: Any) -> None:
    found = compare(run(2, keep=()), run(4, keep=()))
    assert found.first is not None
    assert (found.first.step, found.first.index, found.largest) == (0, None, None)
    assert found.explained is None
    assert "run again with History(model, keep=[0])" in str(found)


def test_without_gradients_it_is_told_that_they_are_missing() -> None:
    found = compare(
        train(shards=2, gradients=False), train("same shard", shards=2, gradients=False)
    )
    assert found.explained is None
    assert "Gradients were not noted" in str(found)


# Single numbers -------------------------------------------------------------------------------


def record(*values: float, dtype: torch.dtype = torch.float32, name: str = "p") -> Record:
    model = nn.Module()
    model.register_parameter(name, nn.Parameter(torch.tensor(values, dtype=dtype)))
    return History(model, keep=[BEFORE]).record()


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [
        (torch.float32, ("0x3f800000", "0x3f800001")), (torch.bfloat16, ("0x3f80", "0x3f81")),
        (torch.float16, ("0x3c00", "0x3c01")),
        (torch.float64, ("0x3ff0000000000000", "0x3ff0000000000001")),
    ],
)  # fmt: skip
def test_the_bits_of_both_values_are_told(dtype: torch.dtype, bits: tuple[str, str]) -> None:
    eps = torch.finfo(dtype).eps
    first = compare(record(4, 1, dtype=dtype), record(4, 1 + eps, dtype=dtype)).first
    assert first is not None
    assert (first.index, first.a, first.b, first.ulps) == ((1,), 1, 1 + eps, 1)
    assert (first.bits_a, first.bits_b) == bits
    assert first.of_largest == eps / 4


@pytest.mark.parametrize(("a", "b", "ulps"), [(0.0, -0.0, 0), (-1.0, -1.0 - 2**-23, 1),
                                              (2**-149, -(2**-149), 2)])  # fmt: skip
def test_ulps_are_counted_across_zero(a: float, b: float, ulps: int) -> None:
    first = compare(record(a), record(b)).first
    assert first is not None
    assert first.ulps == ulps


def test_the_first_and_the_largest_difference_may_be_two() -> None:
    found = compare(record(1, 2, 3), record(1, 2.5, 5))
    assert found.first is not None
    assert found.largest is not None
    assert (found.first.index, found.largest.index) == ((1,), (2,))
    assert found.largest.of_largest == 2 / 5
    assert "element [1]: 2 (0x40000000) and 2.5 (0x40200000)" in str(found)


@pytest.mark.parametrize(
    ("a", "b", "error", "words"),
    [
        (record(1), record(1, name="q"), ValueError, "run b has no parameter 'p'"),
        (record(1), record(1, 2), ValueError, r"p: float32 of shape \(1,\) in run a, .*\(2,\)"),
        (record(1), record(1, dtype=torch.float64), ValueError, "float64 of shape"),
        (record(1), [], TypeError, r"b=\[\]: give records"),
        ("run", record(1), TypeError, "a='run': give records"),
        (record(1), [record(1), 7], TypeError, "give records"),
    ],
)
def test_runs_that_cannot_be_compared(a: Any, b: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        compare(a, b)


def test_other_steps_or_no_terms_cannot_be_compared() -> None:
    histories = [History(net()) for _ in range(2)]
    for step, history in enumerate(histories):
        history.note(step)
    with pytest.raises(ValueError, match="no step was noted in both runs"):
        compare(histories[0].record(), histories[1].record())
    with pytest.raises(ValueError, match="terms=0"):
        compare(record(1), record(1), terms=0)
    with pytest.raises(ValueError, match="of shape"):
        compare(train(), train("wide"))
