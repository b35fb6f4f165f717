"""FLOPs: equal to the formula by hand, on every way to run a model, without touching it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import (
    FlopCounterMode,
    sdpa_backward_flop_count,
    sdpa_flop_count,
)

import labkit
from labkit.lessons.model import GPT, GPTConfig
from labkit.runtime.flops import CountFlops
from labkit.trace import Trace
from labkit.trace.log import Log

BATCH, TOKENS, WIDTH, LAYERS = 2, 16, 24, 3


def count(run: Callable[[], Any]) -> int:
    log = Log(0)
    with CountFlops(log):
        run()
    return log.flops


def gpt(dropout: float = 0.0) -> GPT:
    return GPT(GPTConfig.tiny(context=TOKENS, width=WIDTH, layers=LAYERS, dropout=dropout))


def batch() -> tuple[Tensor, Tensor]:
    tokens = torch.arange(BATCH * (TOKENS + 1)).reshape(BATCH, TOKENS + 1) * 7 % 256
    return tokens[:, :-1], tokens[:, 1:]


def product_weights(model: nn.Module) -> int:
    """Parameters that take part in a matrix product: an embedding is looked up."""
    linear = (m for m in model.modules() if isinstance(m, nn.Linear))
    return sum(m.weight.numel() for m in linear)


ATTENTION = LAYERS * 2 * BATCH * TOKENS * TOKENS * WIDTH  # one of its matrix products


@pytest.mark.parametrize(
    ("dropout", "backward_products"),
    [(0.0, 5), (0.1, 4)],  # the fused kernel computes the scores anew
)
def test_a_gpt_step_equals_the_formula_by_hand(dropout: float, backward_products: int) -> None:
    model = gpt(dropout)
    forward = 2 * product_weights(model) * BATCH * TOKENS + 2 * ATTENTION
    backward = 4 * product_weights(model) * BATCH * TOKENS + backward_products * ATTENTION
    losses = []
    assert count(lambda: losses.append(model.loss(*batch()))) == forward
    assert count(losses[0].backward) == backward


def test_the_bits_of_a_step_are_the_same() -> None:
    def step() -> list[Tensor]:
        torch.manual_seed(0)
        model = gpt(dropout=0.1)
        loss = model.loss(*batch())
        loss.backward()
        return [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]

    plain = step()
    with CountFlops(Log(0)):
        counted = step()
    assert len(plain) > LAYERS
    assert all(map(torch.equal, plain, counted))


def test_attention_counts_in_full_whether_causal_or_not() -> None:
    q, k, v = (torch.ones(2, 3, 8, 4) for _ in range(3))
    full = 2 * 2 * (2 * 3) * 8 * 8 * 4
    assert count(lambda: F.scaled_dot_product_attention(q, k, v)) == full
    assert count(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)) == full


def test_our_formulas_are_those_of_torch() -> None:
    q, k, v = torch.ones(2, 6, 7, 4), torch.ones(2, 3, 5, 4), torch.ones(2, 3, 5, 4)
    for tensor in (q, k, v):
        tensor.requires_grad_()
    out: list[Tensor] = []
    forward = count(lambda: out.append(F.scaled_dot_product_attention(q, k, v, enable_gqa=True)))
    assert forward == sdpa_flop_count(q.shape, k.shape, v.shape)
    backward = count(out[0].sum().backward)
    assert backward == sdpa_backward_flop_count(out[0].shape, q.shape, k.shape, v.shape)

    def products() -> None:
        a, b = torch.ones(3, 4), torch.ones(4, 5)
        torch.mm(a, b)
        torch.addmm(torch.ones(5), a, b)
        torch.addmm(torch.ones(1), a, b, beta=0.5)
        torch.bmm(a[None].expand(2, 3, 4), b[None].expand(2, 4, 5))
        torch.baddbmm(torch.ones(1), a[None], b[None])
        torch.mm(a, b, out=torch.empty(3, 5))

    with FlopCounterMode(display=False) as counter:
        products()
    assert count(products) == counter.get_total_flops() > 0


def test_queries_that_share_keys_count_a_product_each() -> None:
    q, k = torch.ones(1, 6, 8, 4), torch.ones(1, 2, 8, 4)
    shared = count(lambda: F.scaled_dot_product_attention(q, k, k, enable_gqa=True))
    assert shared == 2 * 2 * 6 * 8 * 8 * 4


@pytest.mark.parametrize("shape", [(8,), (4, 8), (2, 3, 8)])
def test_a_linear_layer_on_any_shape(shape: tuple[int, ...]) -> None:
    rows = torch.Size(shape[:-1]).numel()
    assert count(lambda: nn.Linear(8, 5)(torch.ones(shape))) == 2 * rows * 8 * 5


@pytest.mark.parametrize("without_grad", [torch.no_grad, torch.inference_mode])
def test_without_gradients_the_forward_counts_the_same(without_grad: Any) -> None:
    model = gpt()

    def forward() -> Tensor:
        with without_grad():
            return model(batch()[0])

    assert count(forward) == 2 * product_weights(model) * BATCH * TOKENS + 2 * ATTENTION
    with CountFlops(Log(0)):
        counted = forward()
    assert torch.equal(counted, forward())


def test_gradients_of_inputs_and_of_weights_alone_count_a_third_each() -> None:
    layers = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
    x = torch.ones(4, 8, requires_grad=True)
    product = 2 * 4 * 8 * 8
    weights = [*layers.parameters()]
    assert count(lambda: torch.autograd.grad(layers(x).sum(), [x])) == (2 + 2) * product
    assert count(lambda: torch.autograd.grad(layers(x).sum(), weights)) == (2 + 3) * product
    assert count(lambda: torch.autograd.grad(layers(x).sum(), [x, *weights])) == 6 * product


def test_recomputed_activations_count_again() -> None:
    block = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    x = torch.ones(4, 8, requires_grad=True)
    product = 2 * 4 * 8 * 8
    assert count(lambda: block(x).sum().backward()) == 3 * product
    again = count(lambda: checkpoint(block, x, use_reentrant=False).sum().backward())
    assert again == 4 * product


def test_other_formulas_are_torchs() -> None:
    image = torch.ones(1, 3, 8, 8, requires_grad=True)
    layer = nn.Conv2d(3, 4, 3)

    def step() -> None:
        layer(image).sum().backward()

    with FlopCounterMode(display=False) as counter:
        step()
    assert count(step) == counter.get_total_flops() > 0


def test_counters_may_be_nested() -> None:
    layer, x = nn.Linear(8, 8), torch.ones(4, 8)
    one = 2 * 4 * 8 * 8
    log, inner = Log(0), Log(0)
    with CountFlops(log):
        with CountFlops(inner), FlopCounterMode(display=False) as counter:
            layer(x)
        layer(x)
    assert (log.flops, inner.flops, counter.get_total_flops()) == (2 * one, one, one)


def test_what_computes_nothing_counts_nothing() -> None:
    layer = nn.Linear(8, 8)

    def fake() -> None:
        with FakeTensorMode():
            torch.ones(8, 8) @ torch.ones(8, 8)

    def fake_of_real() -> None:
        with FakeTensorMode(allow_non_fake_inputs=True), CountFlops(inner):
            assert (layer.weight @ layer.weight).shape == (8, 8)

    inner = Log(0)
    assert count(fake) == 0
    assert count(fake_of_real) == inner.flops == 0
    assert count(lambda: torch.ones(8, 8, device="meta") @ torch.ones(8, 8, device="meta")) == 0
    assert count(lambda: F.gelu(torch.ones(8)).softmax(0)) == 0


class Half(Tensor):
    """Says that it has twice the rows that it holds."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> Half:
        shape = (2 * held.shape[0], *held.shape[1:])
        made: Half = Tensor._make_wrapper_subclass(cls, shape, dtype=held.dtype)
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        held = [x.held if isinstance(x, Half) else x for x in args]
        return Half(func(*held, **(kwargs or {})))


def test_a_wrapper_counts_what_it_runs_and_not_what_it_says() -> None:
    x = Half(torch.ones(4, 8))
    assert x.shape == (8, 8)
    assert count(lambda: torch.mm(x, torch.ones(8, 8))) == 2 * 4 * 8 * 8


def test_a_jagged_batch_counts_its_rows() -> None:
    rows = torch.nested.nested_tensor([torch.ones(3, 8), torch.ones(2, 8)], layout=torch.jagged)
    assert count(lambda: nn.Linear(8, 4)(rows)) == 2 * 5 * 8 * 4


def test_a_compiled_function_compiles_as_it_would_uncounted() -> None:
    @torch.compile(backend="eager", fullgraph=True)
    def compiled(x: Tensor) -> Tensor:
        return (x @ x).relu()

    x = torch.ones(8, 8)
    with CountFlops(Log(0)):
        assert torch.equal(compiled(x), (x @ x).relu())
        assert torch.equal(torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), x.sin())


def test_only_what_has_a_formula_goes_another_way() -> None:
    """No mode is on, and an operation that counts nothing has the kernels that it always has."""
    ways = torch._C._dispatch_dump_table
    names = ("aten::mm", "aten::add.Tensor", "aten::linear", "aten::view", "aten::copy_")
    plain = {name: ways(name) for name in names}
    with CountFlops(Log(0)):
        assert torch._C._len_torch_dispatch_stack() == 0
        assert [name for name in names if ways(name) != plain[name]] == ["aten::mm"]
    assert {name: ways(name) for name in names} == plain


def test_what_an_operation_refuses_is_told_as_uncounted() -> None:
    def refused() -> str:
        with pytest.raises(RuntimeError) as caught:
            torch.mm(torch.ones(2, 3), torch.ones(2, 3))
        return str(caught.value)

    def then_one() -> None:
        told.append(refused())
        torch.ones(2, 3) @ torch.ones(3, 2)

    told: list[str] = []
    assert count(then_one) == 2 * 2 * 3 * 2
    assert told == [refused()]


def test_an_error_ends_the_counting() -> None:
    log, a = Log(0), torch.ones(2, 2)
    with pytest.raises(KeyError), CountFlops(log):
        raise KeyError
    assert torch.equal(a @ a, 2 * a)
    assert log.flops == 0


def test_another_thread_counts_only_in_a_backward() -> None:
    a = torch.ones(4, 4, requires_grad=True)
    with ThreadPoolExecutor(1) as pool:
        assert count(lambda: pool.submit(torch.mm, a, a).result()) == 0
        loss = (a @ a).sum()
        assert count(lambda: pool.submit(loss.backward).result()) == 2 * (2 * 4 * 4 * 4)


def test_a_mapped_function_counts_what_it_became() -> None:
    a, b = torch.ones(5, 2, 3), torch.ones(5, 3, 4)
    assert count(lambda: torch.func.vmap(torch.mm)(a, b)) == 5 * (2 * 2 * 3 * 4)


def test_counting_costs_cpu_time_only_where_it_counts() -> None:
    """Microseconds that an operation takes more: a mode would take 5 to 15 of each."""

    def cost(run: Callable[[], Any]) -> float:
        batches = []
        for _ in range(10):
            began = time.thread_time_ns()
            for _ in range(200):
                run()
            batches.append((time.thread_time_ns() - began) / 200e3)
        return min(batches)

    a = torch.ones(4, 4)
    limits: list[tuple[Callable[[], Any], float]] = [
        (lambda: a.add_(1), 1), (lambda: a.view(16), 1), (lambda: a @ a, 15),
    ]  # fmt: skip
    for run, limit in limits:
        least = float("inf")
        for _ in range(20):  # a neighbour may be loud: a quieter moment tells what the code needs
            plain = cost(run)
            with CountFlops(Log(0)):
                least = min(least, cost(run) - plain)
            if least < limit:
                break
        assert least < limit


def test_counting_loads_neither_dtensor_nor_the_compiler() -> None:
    code = (
        "import sys, torch\n"
        "from labkit.runtime.flops import CountFlops\n"
        "from labkit.trace.log import Log\n"
        "log = Log(0)\n"
        "with CountFlops(log):\n"
        "    torch.nn.Linear(8, 8)(torch.ones(4, 8)).sum().backward()\n"
        "assert log.flops == 2 * 2 * 4 * 8 * 8, log.flops\n"
        "print([m for m in ('torch.distributed.tensor', 'torch._dynamo') if m in sys.modules])\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert told.stdout.strip() == "[]"


# On ranks.


def flops_by_rank(trace: Trace) -> list[int]:
    ends = trace.columns["flops_end"]
    return [int(ends[trace.columns["rank"] == rank].max()) for rank in range(trace.about.ranks)]


def test_with_tensor_parallelism_each_rank_counts_its_share() -> None:
    def train() -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import (
            ColwiseParallel,
            RowwiseParallel,
            parallelize_module,
        )

        mlp = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16))
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        mesh = init_device_mesh("cpu", (2,))
        parallel = parallelize_module(mlp, mesh, plan)  # type: ignore[arg-type]
        for _ in range(3):
            parallel(torch.ones(4, 16, requires_grad=True)).sum().backward()

    run = labkit.launch(train, ranks=2, threads=1, seed=0, timeout=60)
    whole = 3 * 3 * (2 * 2 * 4 * 16 * 64)  # 3 steps, of forward and twice that
    assert flops_by_rank(run.trace) == [whole // 2, whole // 2]


@pytest.mark.parametrize("schedule", ["Schedule1F1B", "ScheduleInterleavedZeroBubble"])
def test_in_torchs_pipelines_the_stages_add_up_to_the_whole(schedule: str) -> None:
    rows, width, micro, stages = 8, 16, 4, 4

    def train(schedule: str) -> list[Tensor]:
        from torch.distributed import get_rank, pipelining

        rank = get_rank()
        mine = [rank * 2, rank * 2 + 1] if schedule == "Schedule1F1B" else [rank, rank + 2]

        def layer(index: int) -> nn.Module:
            torch.manual_seed(index)
            return nn.Sequential(nn.Linear(width, width), nn.ReLU())

        parts = [layer(index) for index in mine]
        device = torch.device("cpu")
        if schedule == "Schedule1F1B":
            stage = pipelining.PipelineStage(nn.Sequential(*parts), rank, 2, device)
            run: Any = pipelining.Schedule1F1B(stage, micro, nn.functional.mse_loss)
        else:
            both = [
                pipelining.PipelineStage(part, index, stages, device)
                for part, index in zip(parts, mine, strict=True)
            ]
            run = pipelining.ScheduleInterleavedZeroBubble(both, micro, nn.functional.mse_loss)  # type: ignore[arg-type]
        inputs = (torch.ones(rows, width),) if rank == 0 else ()
        target = torch.zeros(rows, width) if rank == 1 else None
        for i in range(2):
            with labkit.span("step", step=i):
                run.step(*inputs, target=target)
        return [p.grad for part in parts for p in part.parameters() if p.grad is not None]

    run = labkit.launch(train, schedule, ranks=2, threads=1, seed=0, timeout=60)
    one = 2 * rows * width * width
    # torch's first step runs a micro-batch more, to learn shapes.
    second = [e.flops for e in run.trace.events if e.kind == "span" and e.tags["step"] == 1]
    # Every layer forward and backward, but for the gradient of what the pipeline was given.
    assert sum(second) == (3 * stages - 1) * one
    plain = labkit.launch(train, schedule, ranks=2, threads=1, seed=0, timeout=60, trace=False)
    for counted, uncounted in zip(run.results, plain.results, strict=True):
        assert len(counted) == stages
        assert all(map(torch.equal, counted, uncounted))
