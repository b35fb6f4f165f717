"""What travels to ranks and back, as bytes."""

from __future__ import annotations

import pytest
import torch

from labkit.runtime.travel import pack, pack_result, unpack


def test_a_row_of_a_large_tensor_travels_without_the_other_rows() -> None:
    table = torch.arange(1_000_000.0).view(1000, 1000)
    for part in (table[3], table[:, 3], table[3:5, ::2].t(), table[5, 5]):
        data = pack_result({"part": part})
        assert len(data) < 20_000
        assert torch.equal(unpack(data)["part"], part)


def test_an_argument_that_is_a_small_view_travels_alone_too() -> None:
    table = torch.zeros(1_000_000)
    assert len(pack(print, (table[:10],))) < 20_000


def test_a_view_keeps_whether_it_wants_a_gradient() -> None:
    leaf = torch.zeros(10_000)[:5].requires_grad_()
    assert unpack(pack_result(leaf)).requires_grad


@pytest.mark.parametrize(
    "value",
    [
        torch.ones(10_000),
        torch.ones(100, 100).t(),
        torch.nn.Parameter(torch.ones(10_000)),
        torch.ones(3, 4).to_sparse(),
        torch.empty(0),
        torch.zeros(1).expand(10_000),
        torch.zeros(10_000, device="meta")[:5],
    ],
    ids=["whole", "turned", "parameter", "sparse", "empty", "expanded", "meta"],
)
def test_other_tensors_travel_as_they_are(value: torch.Tensor) -> None:
    back = unpack(pack_result(value))
    assert type(back) is type(value)
    assert back.layout == value.layout
    assert back.shape == value.shape
    if value.layout == torch.strided:
        assert back.stride() == value.stride()
