"""The lessons' GPT: its shape, its start, its causality."""

from __future__ import annotations

import math

import pytest
import torch

from labkit.lessons.model import GPT, GPTConfig


def size(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_default_and_tiny_sizes() -> None:
    c = GPTConfig()
    d = c.width
    blocks = c.layers * (12 * d * d + 13 * d)
    assert size(GPT()) == blocks + 2 * 256 * d + c.context * d + 2 * d
    assert 1e6 < size(GPT()) < 3e6
    assert size(GPT(GPTConfig.tiny())) < 25_000


def test_weights_depend_on_the_seed_alone_and_draw_nothing_from_the_rank() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = GPT(GPTConfig.tiny(), seed=3)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    second, other = GPT(GPTConfig.tiny(), seed=3), GPT(GPTConfig.tiny(), seed=4)
    weights = [list(m.parameters()) for m in (first, second, other)]
    assert all(torch.equal(a, b) for a, b in zip(weights[0], weights[1], strict=True))
    assert not torch.equal(weights[0][0], weights[2][0])


def test_no_token_sees_a_later_one() -> None:
    model = GPT(GPTConfig.tiny())
    tokens = torch.arange(16)[None]
    changed = tokens.clone()
    changed[0, 9] = 200
    a, b = model(tokens), model(changed)
    assert a.shape == (1, 16, 256)
    assert torch.equal(a[0, :9], b[0, :9])
    assert not torch.equal(a[0, 9:], b[0, 9:])


def test_loss_is_the_mean_negative_log_probability() -> None:
    model = GPT(GPTConfig.tiny())
    tokens = torch.randint(256, (2, 7))
    targets = torch.randint(256, (2, 7))
    logs = model(tokens).log_softmax(-1).gather(-1, targets[..., None])
    torch.testing.assert_close(model.loss(tokens, targets), -logs.mean())
    assert model.loss(tokens, targets).item() == pytest.approx(math.log(256), abs=0.5)


def test_tied_and_dropout() -> None:
    tied = GPT(GPTConfig.tiny(tied=True))
    assert tied.head.weight is tied.tokens.weight
    assert size(tied) == size(GPT(GPTConfig.tiny())) - 256 * 24
    model, tokens = GPT(GPTConfig.tiny(dropout=0.5)), torch.zeros(1, 4, dtype=torch.int64)
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    assert torch.equal(model(tokens), model(tokens))


@pytest.mark.parametrize(
    ("bad", "said"),
    [({"width": 0}, "width=0"), ({"width": 25}, "does not divide"), ({"dropout": 1.0}, "dropout")],
)
def test_a_bad_shape_is_named(bad: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        GPTConfig.tiny(**bad)


def test_too_many_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="17 tokens in a row: this GPT reads at most 16"):
        GPT(GPTConfig.tiny())(torch.zeros(1, 17, dtype=torch.int64))
