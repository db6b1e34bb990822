"""The pure parts: which mode a loop gets, what a function's source shows, where tensors lie."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.autograd as ag
from torch import nn
from torch.autograd import grad as derivative
from torch.func import jacrev

from lightning_speedups.evaluation import rebatch, source
from lightning_speedups.evaluation.decide import Decision, Facts, decide
from lightning_speedups.evaluation.settings import LOOPS
from lightning_speedups.evaluation.walk import samples_in, tensors_in, tensors_on

ON = Facts(inference_mode=True)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(
    ("facts", "request_", "mode", "reason"),
    [
        (ON, None, "inference_mode", "Lightning's default outside fit"),
        (Facts(inference_mode=False), "no_grad", "no_grad", "asked for"),
        (Facts(inference_mode=False), "inference_mode", "inference_mode", "asked for"),
        (Facts(True, need="x in y"), None, "no_grad", "may need gradients: x in y"),
        (Facts(True, backward_runs=1), None, "no_grad", "validation inside fit ran autograd once"),
        (Facts(True, compiled="f"), None, "no_grad", "compiled module found (f)"),
        (Facts(False, ruled_out="the strategy is FSDP"), "inference_mode", "no_grad", "the strategy is FSDP"),
    ],
)
def test_the_mode_of_a_loop(loop: Any, facts: Facts, request_: Any, mode: str, reason: str) -> None:
    decision = decide(loop, request_, facts)
    assert (decision.mode, reason in decision.reason) == (mode, True)


@pytest.mark.parametrize("loop", ["validate", "test", "predict"])
def test_what_lightning_falls_back_for_comes_before_what_the_step_needs(loop: Any) -> None:
    facts = Facts(True, ruled_out="the accelerator is XLA", need="x in y", compiled="f")
    assert decide(loop, None, facts).reason == "the accelerator is XLA: Lightning falls back from inference_mode"


def test_inside_fit_nothing_is_decided_unless_asked() -> None:
    facts = Facts(False, ruled_out="the process group's backend is gloo", need="x in y", compiled="f")
    assert decide("fit_validation", None, facts).reason.startswith("Lightning validates inside fit")


def test_a_request_that_the_step_cannot_bear_has_a_warning() -> None:
    decision = decide("test", "inference_mode", Facts(True, need="x in y"))
    assert isinstance(decision, Decision)
    assert "which inference_mode does not allow" in str(decision.warning)


def by_module_name(x: Any) -> Any:
    return torch.autograd.grad(x.sum(), x)


def by_another_name(x: Any) -> Any:
    return ag.grad(x.sum(), x)


def by_an_import(x: Any) -> Any:
    return derivative(x.sum(), x)


def by_an_import_inside(x: Any) -> Any:
    from torch.autograd import grad as g

    return g(x.sum(), x)


def by_backward(loss: Any) -> None:
    (loss * 2).mean().backward()


def by_enabling(x: Any) -> Any:
    with torch.no_grad(), torch.enable_grad():
        return x


def by_a_flag(x: Any, on: bool) -> Any:
    with torch.set_grad_enabled(on):
        return x


def by_attribute(x: Any) -> None:
    x.requires_grad = True


def by_keyword(x: Any) -> Any:
    return torch.tensor(x, requires_grad=True)


def by_leaving_inference_mode(x: Any) -> Any:
    with torch.inference_mode(False):
        return x


def by_a_transform(x: Any) -> Any:
    return jacrev(torch.sin)(x)


def by_a_full_name(x: Any) -> Any:
    return torch.func.vjp(torch.sin, x)


def in_an_inner_function(x: Any) -> Any:
    def inner() -> Any:
        return [torch.autograd.grad(each.sum(), each) for each in x]

    return inner()


def unless_in_training(self: nn.Module, x: torch.Tensor) -> Any:
    if not self.training:
        return torch.autograd.grad(x.sum(), x)
    return x


def by_leaving_inference_mode_in_evaluation(self: nn.Module, x: torch.Tensor) -> Any:
    with torch.inference_mode(self.training):
        return x


def in_training_of_another(other: nn.Module, x: torch.Tensor) -> Any:
    with torch.set_grad_enabled(other.training):
        return x


by_lambda = lambda x: torch.autograd.grad(x.sum(), x)  # noqa: E731

NEEDS = [
    *(by_module_name, by_another_name, by_an_import, by_an_import_inside, by_backward, by_enabling, by_a_flag),
    *(by_attribute, by_keyword, by_leaving_inference_mode, by_a_transform, by_a_full_name, in_an_inner_function),
    *(by_lambda, unless_in_training, by_leaving_inference_mode_in_evaluation, in_training_of_another),
]


@pytest.mark.parametrize("function", NEEDS, ids=lambda function: function.__name__)
def test_what_needs_gradients_is_found_with_its_line(function: Any) -> None:
    (first, *_) = source.calls_for_gradients(function)
    begin = function.__code__.co_firstlineno
    assert first.line is not None
    assert begin <= first.line <= begin + 5


def reads_gradients(module: nn.Module) -> float:
    """Calls torch.autograd.grad and loss.backward() in this text only."""
    return sum(float(p.grad.norm()) for p in module.parameters() if p.requires_grad and p.grad is not None)


def turns_off(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad(), torch.set_grad_enabled(False), torch.inference_mode():
        return x.detach().requires_grad_(False)


def makes_without(x: Any) -> torch.Tensor:
    made = torch.zeros(3, requires_grad=False)
    made.requires_grad = False
    return made + torch.is_grad_enabled()


def of_other_libraries(grad: Callable[..., Any], func: Any) -> Any:
    """A parameter called ``grad`` is whatever it is."""
    return func.map(grad(1))


def in_training_only(self: nn.Module, x: torch.Tensor) -> Any:
    with torch.set_grad_enabled(self.training), torch.inference_mode(not self.training):
        x.requires_grad = self.training
        slope = torch.autograd.grad(x.sum(), x) if self.training and x.ndim else None
    if self.training:
        x.sum().backward()
    elif self.training:
        x.requires_grad_()
    return slope


@pytest.mark.parametrize("function", [reads_gradients, turns_off, makes_without, of_other_libraries, in_training_only])
def test_what_needs_none_is_left_alone(function: Any) -> None:
    assert source.calls_for_gradients(function) == []


def test_every_kind_of_holder_is_walked() -> None:
    module = nn.Linear(2, 2)
    tensor = torch.ones(1)
    module.many = {"list": [tensor], 3: (tensor, {"deep": tensor}), "set": {tensor}}
    paths = {held.path for _, _, held in tensors_on(module)}
    assert paths == {
        *("weight", "bias", "many['list'][0]", "many[3][0]", "many[3][1]['deep']"),
        "many['set']{}",
    }


def test_a_structure_that_contains_itself_ends() -> None:
    loop: list[Any] = [torch.ones(1)]
    loop.append(loop)
    assert [held.path for held in tensors_in(loop)] == ["[0]"]


def test_properties_are_not_computed() -> None:
    class Lazy:
        @property
        def expensive(self) -> torch.Tensor:
            raise AssertionError("computed")

        @functools.cached_property
        def also(self) -> torch.Tensor:
            raise AssertionError("computed")

    module = nn.Linear(1, 1)
    module.lazy = Lazy()
    assert [held.path for _, _, held in tensors_on(module)] == ["weight", "bias"]


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (torch.ones(5, 2), 5),
        ([torch.ones(3), torch.ones(4)], 3),
        ({"x": torch.tensor(1.0), "y": torch.ones(6, 1)}, 6),
        (["a", "b"], None),
        (torch.tensor(1.0), None),
        (None, None),
    ],
)
def test_the_samples_of_a_batch(batch: Any, samples: int | None) -> None:
    assert samples_in(batch) == samples


def test_a_batch_that_says_how_many_it_holds() -> None:
    class Graphs:
        num_graphs = 7
        x = torch.ones(100, 3)

    assert samples_in(Graphs()) == 7


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("ours", "users", "agree"),
    [
        (1.0, 1.0, True),
        (1.000009, 1.0000001, True),
        (1.00002, 1.0000001, False),
        (100000.0, 100001.0, False),
        (NAN, NAN, True),
        (NAN, 1.0, False),
        (INF, INF, True),
        (INF, 1e30, False),
        (-0.5, -0.500001, True),
        (1e-12, -1e-12, True),
    ],
)
def test_counts_agree_exactly_and_floats_nearly(ours: float, users: float, agree: bool) -> None:
    assert (rebatch.disagreements({"m": ours}, {"m": users}) == []) is agree


def test_a_metric_of_one_size_only_is_a_disagreement() -> None:
    assert rebatch.disagreements({"a": 1.0}, {"b": 1.0}) == [
        "a is logged at one of the two sizes only",
        "b is logged at one of the two sizes only",
    ]
