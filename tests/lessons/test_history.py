"""Notes of a training run: checksums of everything, numbers of what was asked for."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import nn

from labkit.lessons import History, Record
from labkit.lessons.history import BEFORE, GRADIENT, WEIGHT, differing


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))


def trained(net: nn.Module, history: History, steps: int = 3) -> Record:
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for step in range(steps):
        optimizer.zero_grad()
        net(torch.ones(4, 3)).sum().backward()
        optimizer.step()
        history.note(step)
    return history.record()


def test_every_step_is_noted_and_only_those_asked_for_are_kept() -> None:
    net = model()
    record = trained(net, History(net, keep=[BEFORE, 1]))
    assert record.steps == (BEFORE, 0, 1, 2)
    assert record.parameters == ("0.weight", "0.bias", "1.weight", "1.bias")
    kept = {(step, what) for (step, what, _), it in record.noted.items() if it.value is not None}
    assert kept == {(BEFORE, WEIGHT), (1, GRADIENT), (1, WEIGHT)}
    assert record.noted[BEFORE, WEIGHT, "0.weight"].shape == (2, 3)
    assert (record.rank, record.ranks) == (0, 1)


def test_what_is_kept_is_as_it_was_then() -> None:
    net = model()
    before = net[0].weight.detach().clone()
    record = trained(net, History(net, keep=[BEFORE]))
    value = record.noted[BEFORE, WEIGHT, "0.weight"].value
    assert value is not None
    assert torch.equal(value, before)
    assert not torch.equal(net[0].weight, before)


def test_equal_bits_have_equal_checksums_and_one_bit_more_has_not() -> None:
    a, b = (History(net).record() for net in (model(), model()))
    assert list(differing(a, b, BEFORE, WEIGHT)) == []
    net = model()
    with torch.no_grad():
        net[1].bias.view(torch.int32).add_(1)
    assert list(differing(a, History(net).record(), BEFORE, WEIGHT)) == ["1.bias"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_every_dtype_is_noted(dtype: torch.dtype) -> None:
    noted = History(model().to(dtype), keep=[BEFORE]).record().noted[BEFORE, WEIGHT, "0.bias"]
    assert noted.dtype == str(dtype).removeprefix("torch.")
    assert noted.value is not None
    assert noted.value.dtype == dtype


def test_numbers_that_are_not_finite_and_missing_gradients_are_noted() -> None:
    net = model()
    history = History(net)
    with torch.no_grad():
        net[0].bias[0] = float("nan")
    history.note(0)
    record = history.record()
    assert not record.noted[0, WEIGHT, "0.bias"].finite
    assert record.noted[0, WEIGHT, "1.bias"].finite
    assert record.noted[0, GRADIENT, "1.bias"].shape is None
    assert "gradient" not in {what for _, what, _ in History(net, gradients=False).record().noted}


def test_a_wrapper_does_not_change_names_and_a_record_travels() -> None:
    wrapped = nn.Module()
    wrapped.module = model()
    record = History(wrapped, keep=[BEFORE]).record()
    assert record.parameters == ("0.weight", "0.bias", "1.weight", "1.bias")
    assert pickle.loads(pickle.dumps(record)) == record


def test_what_cannot_be_noted() -> None:
    with pytest.raises(ValueError, match="ReLU has no parameters"):
        History(nn.ReLU())
    with pytest.raises(ValueError, match=r"keep: 9 steps of 0.0 MB .*limit_mb=0.0001; keep fewer"):
        History(model(), keep=range(9), limit_mb=1e-4)
    history = History(model())
    history.note(3)
    for step in (3, 2, BEFORE):
        with pytest.raises(ValueError, match=f"step={step} after step 3"):
            history.note(step)
