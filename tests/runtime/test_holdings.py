"""What a rank holds: to the byte, against counts from shapes alone, however the model is run."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

import labkit
from labkit.lessons.model import GPT, GPTConfig
from labkit.runtime.failures import OutOfMemory
from labkit.runtime.holdings import Holdings, counting
from labkit.trace.log import Log
from labkit.trace.memory import Held

FLOAT, LONG = 4, 8  # bytes


@pytest.fixture
def count() -> Any:
    with counting(0) as holdings:
        yield holdings


def saved_by_a_step(config: GPTConfig, batch: int, tokens: int) -> int:
    """Bytes that a `GPT`'s loss saves for its backward: what each operation's formula needs.

    Written from the derivatives: a linear layer needs its input, a layer norm its input with a mean
    and an inverse deviation a token, GELU its input, attention q, k, v, its result and a logarithm
    a token and head, an embedding its indices, the loss its log-probabilities, targets and count.
    """
    token = batch * tokens
    vector, statistics = token * config.width * FLOAT, 2 * token * FLOAT
    indices = token * LONG
    norm = vector + statistics  # its input is the sum that passes through, kept by nothing else
    attention = (
        vector  # input of qkv, the norm's result
        + 3 * vector  # q, k, v
        + vector  # their result, also the input of `out`
        + token * config.heads * FLOAT
    )
    mlp = vector + 4 * vector + 4 * vector  # inputs of up, GELU, down
    head = norm + vector
    loss = token * config.vocab * FLOAT + indices + FLOAT
    return indices + config.layers * (2 * norm + attention + mlp) + head + loss


def batch_of(config: GPTConfig, rows: int, tokens: int) -> tuple[Tensor, Tensor]:
    return (
        torch.randint(0, config.vocab, (rows, tokens)),
        torch.randint(0, config.vocab, (rows, tokens)),
    )


# To the byte


@pytest.mark.parametrize(
    ("config", "rows"),
    [
        (GPTConfig(), 16),
        (GPTConfig(), 8),
        (GPTConfig(), 4),
        (GPTConfig.tiny(), 3),
        (GPTConfig(layers=1, heads=4, width=64, vocab=97, context=24), 5),
    ],
)
def test_every_part_of_the_small_gpt_is_exact(config: GPTConfig, rows: int) -> None:
    log = Log(0)
    model = GPT(config)
    optimizer = torch.optim.AdamW(model.parameters())
    parameters = list(model.parameters())
    states = FLOAT * sum(p.numel() for p in parameters)
    moments = 2 * states + FLOAT * len(parameters)
    activations = saved_by_a_step(config, rows, config.context)
    with counting(0, log=log) as holdings:
        for step in range(2):
            loss = model.loss(*batch_of(config, rows, config.context))
            assert holdings.held() == Held(0, states, 0, moments * step, activations)
            loss.backward()
            assert holdings.held() == Held(0, states, states, moments * step, 0)
            optimizer.step()
            assert holdings.held() == Held(0, states, states, moments, 0)
            optimizer.zero_grad()
    marks = [entry[6]["bytes"] for entry in log.entries]
    checks = [tuple(marks[i : i + 4]) for i in range(0, len(marks), 4)]
    of_the_loss = 4 * rows * config.context * config.vocab + 8 * rows * config.context + 4
    assert checks[1] == (states, 0, 0, activations)  # the start of the first backward
    assert checks[0][3] == activations - of_the_loss  # the end of its forward
    assert checks[2] == (states, states, moments, 0)
    assert len(checks) == 6


def test_tied_weights_count_once(count: Holdings) -> None:
    free, tied = (GPT(GPTConfig.tiny(tied=t)) for t in (False, True))
    tokens, _ = batch_of(tied.config, 2, 8)
    with torch.no_grad():
        tied(tokens)
    assert count.held().weights == FLOAT * sum(p.numel() for p in tied.parameters())
    with torch.no_grad():
        free(tokens)
    both = FLOAT * sum(p.numel() for m in (free, tied) for p in m.parameters())
    assert count.held() == Held(0, both, 0, 0, 0)


def test_buffers_are_weights_and_meta_tensors_are_nothing(count: Holdings) -> None:
    with torch.device("meta"):
        norm = nn.BatchNorm1d(8)
        norm(torch.ones(4, 8))
    assert count.held().total == 0
    norm.to_empty(device="cpu")
    norm(torch.ones(4, 8))
    assert count.held().weights == 4 * 8 * FLOAT + LONG  # γ, β, mean, variance, a counter


def test_a_weight_that_is_used_without_its_module_counts(count: Holdings) -> None:
    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(10, 4)

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.table.weight[:4]

    part, bare = Part(), nn.Parameter(torch.ones(4, 4))
    (part(torch.ones(2, 4)) @ bare).sum()
    assert count.held().weights == (10 * 4 + 4 * 4) * FLOAT


def test_what_is_gone_is_not_held(count: Holdings) -> None:
    x = nn.Linear(100, 100)(torch.ones(10, 100)).relu()
    held = count.held()
    assert held.activations == 2 * 10 * 100 * FLOAT  # the input, and what relu put out
    del x
    gc.collect()
    assert count.held().total == 0


def test_a_graph_that_was_never_run_backward_goes_with_its_result(count: Holdings) -> None:
    weight = nn.Parameter(torch.ones(10))
    for _ in range(3):
        loss = (weight * torch.ones(10)).exp().sum()
    assert count.held().activations == 2 * 10 * FLOAT
    del loss  # nothing keeps itself alive, also not exp, which saves its own result
    assert count.held().activations == 0


def test_one_storage_that_many_operations_save_counts_once(count: Holdings) -> None:
    x = torch.ones(10, requires_grad=True)
    y = x.exp()  # saves y
    z = y * y.view(2, 5).view(10)  # saves y twice more
    assert count.held().activations == 10 * FLOAT
    assert z.requires_grad


def test_flat_gradients_count_as_the_buffer_they_share(count: Holdings) -> None:
    model = nn.Linear(3, 2)
    model(torch.ones(1, 3)).sum().backward()
    flat = torch.zeros(20)
    model.weight.grad, model.bias.grad = flat[:6].view(2, 3), flat[6:8]
    assert count.held().gradients == 20 * FLOAT


def test_masters_of_an_optimizer_are_its_own(count: Holdings) -> None:
    model = nn.Linear(4, 4, bias=False, dtype=torch.bfloat16)
    master = model.weight.detach().float().requires_grad_()
    optimizer = torch.optim.SGD([master], momentum=0.9)
    model(torch.ones(1, 4, dtype=torch.bfloat16)).sum().backward()
    assert model.weight.grad is not None
    master.grad = model.weight.grad.float()
    optimizer.step()
    assert count.held() == Held(0, 32, 32 + 64, 64 + 64, 0)


def test_a_sparse_gradient_counts_its_indices_and_values(count: Holdings) -> None:
    table = nn.Embedding(1000, 4, sparse=True)
    table(torch.tensor([1, 2, 3])).sum().backward()
    assert count.held().gradients == 3 * LONG + 3 * 4 * FLOAT


def test_optimizers_made_before_the_model_ran_and_stepped_or_not() -> None:
    model, idle = nn.Linear(4, 4, bias=False), nn.Linear(4, 4)
    optimizer = torch.optim.Adam(model.parameters())
    torch.optim.Adam(idle.parameters())
    with counting(0) as holdings:
        for _ in range(2):
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()
        assert holdings.held() == Held(0, 64, 64, 2 * 64 + 4, 0)
        lbfgs = torch.optim.LBFGS(model.parameters(), history_size=3)

        def loss() -> Tensor:
            lbfgs.zero_grad()
            value = model(torch.ones(1, 4)).square().sum()
            value.backward()
            return value

        lbfgs.step(loss)  # keeps lists of tensors
        assert holdings.held().optimizer > 2 * 64 + 4 + 64


# When it is checked


def whens(run: Callable[[], Any], limit: int = 0) -> list[str]:
    """When checks fail that are over any limit, where every error is caught on the way."""
    found: list[str] = []

    class Listening(Holdings):
        def check(self, when: str) -> None:
            found.append(when)

    import labkit.runtime.holdings as module

    before, module.Holdings = module.Holdings, Listening  # type: ignore[misc]
    try:
        with counting(0):
            run()
    finally:
        module.Holdings = before  # type: ignore[misc]
    return found


FORWARD, BACKWARD = "at the end of a forward", "at the start of a backward"
STEP = "at the end of an optimizer step"


def test_only_the_outermost_forward_is_checked() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU(), nn.Linear(2, 2)))
    assert whens(lambda: model(torch.ones(1, 2))) == [FORWARD]


def test_a_forward_that_fails_does_not_hide_the_next() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(3, 2))

    def run() -> None:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
                model(torch.ones(1, 2))
        try:
            raise KeyError
        except KeyError:
            model[0](torch.ones(1, 2))  # while another error is being handled

    assert whens(run) == [FORWARD]


def test_every_way_to_start_a_backward_is_checked() -> None:
    weight = torch.ones(2, requires_grad=True)
    from torch.autograd import grad

    def run() -> None:
        (weight * 2).sum().backward()
        torch.autograd.backward((weight * 2).sum())
        grad((weight * 2).sum(), weight)
        torch.autograd.functional.jacobian(lambda w: (w * w).sum(), weight)

    assert whens(run) == [BACKWARD] * 4


def test_each_optimizer_step_is_checked() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())

    def run() -> None:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        optimizer.step()

    assert whens(run) == [FORWARD, BACKWARD, STEP, STEP]


def test_over_the_limit_each_check_raises_and_an_exact_fit_passes() -> None:
    model = nn.Linear(5, 5, bias=False)
    with counting(3, limit=100) as holdings, torch.no_grad():
        model(torch.ones(1, 5))
        holdings.limit = 99
        for _ in range(2):
            with pytest.raises(OutOfMemory) as caught:
                model(torch.ones(1, 5))
        assert (caught.value.rank, caught.value.parts["weights"]) == (3, 100)


def test_afterwards_torch_is_as_it_was() -> None:
    from torch.nn.modules import module

    plain = torch.autograd._engine_run_backward
    counted = counting(0)
    counted.__enter__()
    assert torch.autograd._engine_run_backward is not plain
    assert counted.__exit__(KeyError, KeyError(), None) is not True
    assert torch.autograd._engine_run_backward is plain
    assert not module._global_forward_hooks
    assert not module._global_forward_pre_hooks


# What runs under it runs as it would without


def test_gradients_keep_their_bits_first_and_second_order() -> None:
    torch.manual_seed(0)
    model = GPT(GPTConfig.tiny(dropout=0.1))
    batch = batch_of(model.config, 2, 8)

    def gradients() -> list[Tensor]:
        torch.manual_seed(1)
        parameters = list(model.parameters())
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            first = torch.autograd.grad(model.loss(*batch), parameters, create_graph=True)
        size = torch.stack([g.square().sum() for g in first]).sum()
        return [*first, *torch.autograd.grad(size, parameters, allow_unused=True)]

    plain = gradients()
    with counting(0):
        counted = gradients()
    for a, b in zip(plain, counted, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("own", [False, True])
def test_a_saved_tensor_that_was_changed_in_place_is_still_an_error(own: bool) -> None:
    weight = torch.ones(3, requires_grad=True)
    y = weight.exp() if own else weight * 2
    with counting(0):
        y = weight.exp() if own else weight * 2
        z = y if own else y * y
        with torch.no_grad():
            y += 1
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            z.sum().backward()


def test_a_second_backward_is_refused_as_ever(count: Holdings) -> None:
    loss = torch.ones(3, requires_grad=True).exp().sum()
    loss.backward(retain_graph=True)
    assert count.held().activations == 3 * FLOAT
    loss.backward()
    assert count.held().activations == 0
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_keeps_the_inputs_of_its_segments_alone(reentrant: bool) -> None:
    layers = [nn.Linear(64, 64) for _ in range(4)]
    x = torch.ones(8, 64, requires_grad=True)
    one = 8 * 64 * FLOAT

    def forward(checkpointed: bool) -> Tensor:
        y = x
        for layer in layers:
            run = lambda t, layer=layer: layer(t).relu().exp()  # noqa: E731
            y = checkpoint(run, y, use_reentrant=reentrant) if checkpointed else run(y)
        return y

    with counting(0) as holdings:
        plain = forward(False)
        assert holdings.held().activations == (1 + 2 * 4) * one
        del plain
        y = forward(True)
        assert holdings.held().activations == 4 * one
        y.sum().backward()
        assert holdings.held().activations == 0


def test_hooks_of_the_learners_own_come_first(count: Holdings) -> None:
    packed: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tensor.detach())
        return tensor.detach()

    x = torch.ones(5, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y = x.exp()
    assert len(packed) == 1
    assert count.held().activations == 0  # theirs to keep
    z = y.exp()
    assert count.held().activations == 5 * FLOAT
    z.sum().backward()
    assert x.grad is not None


def test_modules_that_say_they_are_equal_are_two(count: Holdings) -> None:
    class Equal(nn.Linear):
        def __eq__(self, other: object) -> bool:
            return isinstance(other, Equal)

        def __hash__(self) -> int:
            return 1

    models = [Equal(2, 2, bias=False) for _ in range(2)]
    with torch.no_grad():
        for model in models:
            model(torch.ones(1, 2))
    assert count.held().weights == 2 * 16


# On ranks


def last_marks(run: labkit.Run) -> dict[int, list[tuple[int, ...]]]:
    found: dict[int, list[int]] = {}
    for event in run.trace.events:
        if event.kind == "memory":
            found.setdefault(event.rank, []).append(event.bytes)
    return {
        rank: [tuple(marks[i : i + 4]) for i in range(0, len(marks), 4)]
        for rank, marks in found.items()
    }


def with_ours() -> None:
    from labkit.techniques.data_parallel import DataParallel

    model = DataParallel(nn.Linear(50, 50, bias=False))
    model(torch.ones(1, 50)).sum().backward()
    model.finish()
    torch.optim.SGD(model.parameters()).step()


def with_torchs() -> None:
    model = nn.parallel.DistributedDataParallel(nn.Linear(50, 50, bias=False))
    model(torch.ones(1, 50)).sum().backward()
    torch.optim.SGD(model.parameters()).step()


@pytest.mark.usefixtures("no_process_left")
@pytest.mark.parametrize("fn", [with_ours, with_torchs])
def test_data_parallel_holds_all_states_on_each_rank(fn: Callable[[], None]) -> None:
    run = labkit.launch(fn, ranks=2, threads=1, backend="gloo", memory="measure", timeout=60)
    for marks in last_marks(run).values():
        assert marks == [(10_000, 0, 0, 200), (10_000, 0, 0, 200), (10_000, 10_000, 0, 0)]


def sharded() -> tuple[bool, int]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False))
    mesh = init_device_mesh("cpu", (2,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 64)).sum().backward()
    optimizer.step()
    return isinstance(model[0].weight, DTensor), len(list(model.parameters()))


@pytest.mark.usefixtures("no_process_left")
def test_of_a_sharded_tensor_a_rank_holds_its_share() -> None:
    run = labkit.launch(sharded, ranks=2, threads=1, backend="gloo", memory="measure", timeout=60)
    assert run.results == [(True, 2)] * 2
    half = 2 * 64 * 64 * FLOAT // 2
    for marks in last_marks(run).values():
        assert marks[-1] == (half, half, 2 * half + 2 * FLOAT, 0)


def test_functional_transforms_say_that_they_do_not_work_here() -> None:
    with counting(0), pytest.raises(RuntimeError, match="saved tensor hooks"):
        torch.func.grad(lambda w: F.relu(w).sum())(torch.ones(2))
