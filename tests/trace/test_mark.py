"""Spans round a module's forward and backward: their order, and modules that are not plain."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from labkit.trace import mark
from labkit.trace.log import Log
from labkit.trace.span import write_to


class Heard:
    """A pacer that only listens: what begins ("forward a") and ends ("/forward a"), in order."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self.seconds: dict[str, Any] = {}

    def open(self, name: str, tags: Mapping[str, Any]) -> None:
        self.all.append(name)
        self.seconds[name] = tags.get("seconds")

    def close(self, name: str) -> None:
        self.all.append(f"/{name}")

    def rest(self, name: str) -> None:
        self.all.append(f"rest {name}")

    @property
    def spans(self) -> list[str]:
        return [word for word in self.all if not word.startswith("rest")]


@pytest.fixture
def heard() -> Iterator[Heard]:
    listener = Heard()
    log = Log(0)
    log.pacer = listener
    before = write_to(log)
    yield listener
    write_to(before)


def both(*names: str) -> list[str]:
    """The spans of a chain of modules, called and differentiated."""
    there = [word for n in names for word in (f"forward {n}", f"/forward {n}")]
    back = [word for n in reversed(names) for word in (f"backward {n}", f"/backward {n}")]
    return there + back


def test_a_chain_has_one_span_after_the_other(heard: Heard) -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    for name, layer in net.named_children():
        mark(layer, name, forward=0.5, backward=1.0)
    net(torch.ones(2, 4)).sum().backward()
    assert heard.spans == both("0", "1", "2")
    assert heard.seconds == {
        f"{way} {n}": seconds
        for n in "012"
        for way, seconds in (("forward", 0.5), ("backward", 1.0))
    }


@pytest.mark.parametrize("first_needs_gradient", [False, True])
def test_a_gradient_is_handed_on_when_its_layer_has_rested(
    heard: Heard, first_needs_gradient: bool
) -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    for i, layer in enumerate(net):
        for kind, p in layer.named_parameters():  # as data parallelism does, and before `mark`
            p.register_post_accumulate_grad_hook(lambda _, n=f"{kind} {i}": heard.all.append(n))
        mark(layer, str(i), backward=1.0)
    net(torch.ones(2, 4, requires_grad=first_needs_gradient)).sum().backward()
    for i in "01":
        sent = [heard.all.index(f"{kind} {i}") for kind in ("bias", "weight")]
        assert heard.all.index(f"rest backward {i}") < min(sent)
        # The next layer's work has not begun.
        if i == "1":
            assert max(sent) < heard.all.index("backward 0")


def test_a_first_layer_ends_with_its_last_parameter_and_without_a_warning(heard: Heard) -> None:
    first, rest = nn.Embedding(10, 4), nn.Linear(4, 1)
    mark(first, "first")
    mark(rest, "rest")
    rest(first(torch.tensor([1, 2]))).sum().backward()
    assert heard.spans == both("first", "rest")


def test_modules_inside_a_module(heard: Heard) -> None:
    inner = nn.Linear(4, 4)
    outer = nn.Sequential(inner)
    first, last = nn.Linear(4, 4), nn.Linear(4, 4)
    for name, module in {"first": first, "outer": outer, "inner": inner, "last": last}.items():
        mark(module, name)
    last(outer(first(torch.ones(2, 4)))).sum().backward()
    for way, order in (("forward", ("first", "last")), ("backward", ("last", "first"))):
        spans = [word for word in heard.spans if way in word]
        inside = [f"{way} outer", f"{way} inner", f"/{way} inner", f"/{way} outer"]
        assert spans[2:-2] == inside
        assert [*spans[:2], *spans[-2:]] == [
            word for n in order for word in (f"{way} {n}", f"/{way} {n}")
        ]


def test_a_module_that_is_used_twice_has_spans_for_each_call(heard: Heard) -> None:
    layer = nn.Linear(4, 4)
    mark(layer, "a")
    layer(layer(torch.ones(2, 4))).sum().backward()
    assert heard.spans == both("a", "a")


class InPlace(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.relu_()


def test_tensors_that_are_changed_in_place(heard: Heard) -> None:
    def run(names: str) -> Tensor:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 4), InPlace(), nn.Linear(4, 1))
        for name in names:
            mark(net[int(name)], name)
        net(torch.ones(2, 4)).sum().backward()
        grad = net[0].weight.grad
        assert grad is not None
        return grad

    assert torch.equal(run(""), run("012"))
    assert heard.spans == both("0", "1", "2")


class Odd(nn.Module):
    """Takes and gives what is no tensor, too."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, word: str, data: dict[str, Any], *, scale: float) -> dict[str, Any]:
        return {"word": word, "out": [self.layer(data["x"]) * scale, None], "same": data["x"]}


def test_arguments_and_results_that_are_no_tensors(heard: Heard) -> None:
    before, odd = nn.Linear(4, 4), Odd()
    mark(before, "before")
    mark(odd, "odd")
    x = before(torch.ones(2, 4))
    given = odd("word", {"x": x, "n": 3}, scale=2.0)
    (given["out"][0] + given["same"]).sum().backward()
    assert heard.spans == both("before", "odd")


def test_a_branch_that_joins_again(heard: Heard) -> None:
    first, branch = nn.Linear(4, 4), nn.Linear(4, 4)
    mark(first, "first")
    mark(branch, "branch")
    x = first(torch.ones(2, 4))
    (x + branch(x)).sum().backward()
    assert heard.spans == both("first", "branch")


def test_recomputed_activations(heard: Heard) -> None:
    layer = nn.Linear(4, 4)
    mark(layer, "a")
    x = torch.ones(2, 4, requires_grad=True) * 1
    checkpoint(layer, x, use_reentrant=False).sum().backward()
    forward = ["forward a", "/forward a"]
    assert heard.spans == [*forward, "backward a", *forward, "/backward a"]


def test_parameters_that_are_not_used_do_not_keep_a_span_open(heard: Heard) -> None:
    net = nn.ModuleDict({"used": nn.Linear(4, 4), "unused": nn.Linear(4, 4)})
    net.forward = lambda x: net["used"](x)  # type: ignore[method-assign]
    mark(net, "net")
    for _ in range(2):
        net(torch.ones(2, 4)).sum().backward()
    assert heard.spans == both("net") * 2


def no_grad(layer: nn.Module) -> None:
    with torch.no_grad():
        layer(torch.ones(2, 4))


def frozen(layer: nn.Module) -> None:
    layer.requires_grad_(False)(torch.ones(2, 4))


@pytest.mark.parametrize("use", [no_grad, frozen])
def test_without_gradients_there_is_no_backward(
    heard: Heard, use: Callable[[nn.Module], None]
) -> None:
    layer = nn.Linear(4, 4)
    mark(layer, "a")
    use(layer)
    assert heard.spans == ["forward a", "/forward a"]


def test_a_forward_that_fails_ends_its_span(heard: Heard) -> None:
    layer = nn.Linear(4, 4)
    mark(layer, "a")
    with pytest.raises(RuntimeError, match="shapes"):
        layer(torch.ones(2, 5))
    layer(torch.ones(2, 4)).sum().backward()
    assert heard.spans == ["forward a", "/forward a", *both("a")]


def test_a_graph_that_is_kept_has_a_backward_each_time(heard: Heard) -> None:
    layer = nn.Linear(4, 4)
    mark(layer, "a")
    loss = layer(torch.ones(2, 4)).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    assert heard.spans == [*both("a"), "backward a", "/backward a"]


def test_removed(heard: Heard) -> None:
    layer = nn.Linear(4, 4)
    handle = mark(layer, "a")
    loss = layer(torch.ones(2, 4)).sum()
    handle.remove()
    handle.remove()
    loss.backward()
    layer(torch.ones(2, 4)).sum().backward()
    assert heard.spans == ["forward a", "/forward a"]


def test_outside_a_recording_nothing_is_changed() -> None:
    layer = nn.Linear(4, 4)
    x = torch.ones(2, 4)
    plain = torch.autograd.grad(layer(x).sum(), [*layer.parameters()])
    mark(layer, "a", forward=0.5)
    marked = torch.autograd.grad(layer(x).sum(), [*layer.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(plain, marked, strict=True))


@pytest.mark.parametrize("seconds", [-1.0, float("inf"), float("nan")])
def test_seconds_that_are_no_time(seconds: float) -> None:
    with pytest.raises(ValueError, match=r"backward=.*: give seconds, 0 or more"):
        mark(nn.Linear(1, 1), "a", backward=seconds)


@pytest.mark.parametrize(
    ("module", "name", "options", "words"),
    [
        (torch.ones(1), "a", {}, "mark takes a module, such as .*, not Tensor"),
        ("layer", "a", {}, "not str"),
        (nn.Linear(1, 1), 3, {}, "name=3"),
        (nn.Linear(1, 1), "a", {"forward": "1"}, "forward='1': give seconds"),
        (nn.Linear(1, 1), "a", {"backward": True}, "backward=True: give seconds"),
    ],
)
def test_what_cannot_be_marked(module: Any, name: Any, options: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        mark(module, name, **options)
