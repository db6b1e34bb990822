"""``evaluating(module)`` in hand-written loops: everything is back as it was, whatever happened inside."""

from __future__ import annotations

import doctest
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import lightning_speedups as ls

Flags = dict[str, bool]


def net() -> nn.Sequential:
    """With one part frozen in eval mode."""
    made = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 1)))
    made[1].eval()
    return made


def flags(module: nn.Module) -> Flags:
    return {name: part.training for name, part in module.named_modules()}


def state() -> tuple[bool, bool]:
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled()


@pytest.mark.parametrize(
    ("mode", "inside"), [("auto", (False, False)), ("no_grad", (False, False)), ("inference_mode", (False, True))]
)
def test_eval_mode_and_no_gradients_inside_and_all_back_outside(mode: Any, inside: tuple[bool, bool]) -> None:
    module = net()
    before = flags(module)
    with ls.evaluating(module, mode) as given:
        assert given is module
        assert not any(flags(module).values())
        assert state() == inside
        assert not module(torch.randn(3, 4)).requires_grad
    assert flags(module) == before
    assert state() == (True, False)


def test_after_an_exception() -> None:
    module = net()
    before = flags(module)

    @ls.evaluating(module)
    def fails() -> None:
        module.train()
        torch.set_grad_enabled(True)
        raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        fails()
    assert flags(module) == before
    assert state() == (True, False)


def test_the_example_in_its_documentation() -> None:
    found = doctest.testmod(sys.modules[ls.evaluating.__module__], extraglobs={"torch": torch})
    assert (found.failed, found.attempted) == (0, 3)


def test_nested_in_one_another_and_in_other_modes() -> None:
    module, other = net(), net()
    before = flags(module)
    with torch.inference_mode(), ls.evaluating(module):
        with ls.evaluating(module[2]), ls.evaluating(other):
            assert not any({**flags(module), **flags(other)}.values())
        assert not any(flags(module).values())
        assert flags(other) == before
        assert torch.is_inference_mode_enabled()
    assert flags(module) == before
    with torch.no_grad(), ls.evaluating(module):
        pass
    assert state() == (True, False)


def test_one_object_entered_twice() -> None:
    module = net()
    before, context = flags(module), ls.evaluating(module)
    with context:
        module[0].train()
        with context:
            assert not module[0].training
        assert module[0].training
    assert flags(module) == before


def test_as_a_decorator_it_holds_for_each_call() -> None:
    module = net()
    before = flags(module)

    @ls.evaluating(module)
    def score(x: torch.Tensor, times: int = 1) -> torch.Tensor:
        """Scores."""
        assert not any(flags(module).values())
        return module(x) * times

    for _ in range(2):
        assert not score(torch.randn(3, 4), times=2).requires_grad
        assert flags(module) == before
    assert (score.__name__, score.__doc__) == ("score", "Scores.")


def test_a_part_frozen_and_a_part_added_inside() -> None:
    module = net()
    with ls.evaluating(module):
        module.append(nn.Dropout())
        module[0].train()
    assert flags(module) == {"": True, "0": True, "1": False, "2": True, "2.0": True, "2.1": True, "3": True}


def test_gradients_can_be_turned_on_inside() -> None:
    module = net()
    with ls.evaluating(module), torch.enable_grad():
        x = torch.randn(3, 4, requires_grad=True)
        assert torch.autograd.grad(module(x).sum(), x)[0].abs().sum() > 0


def test_what_inference_mode_leaves_on_the_module_can_be_trained_with() -> None:
    class Cached(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not hasattr(self, "scale"):
                self.scale = torch.ones(1) * 2
            return super().forward(x) * self.scale

    module = Cached(4, 1)
    with ls.evaluating(module, mode="inference_mode"):
        module(torch.randn(3, 4))
    module(torch.randn(3, 4)).sum().backward()
    assert module.weight.grad is not None


def test_a_compiled_module() -> None:
    module = net()
    before = flags(module)
    compiled = torch.compile(module, backend="eager")
    with ls.evaluating(compiled):
        assert not any(flags(module).values())
    assert flags(module) == before


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_module_frozen_by_jit_has_no_flags_to_set() -> None:
    module = nn.Sequential(net(), torch.jit.freeze(torch.jit.script(nn.Sequential(nn.Linear(4, 1)).eval())))
    with ls.evaluating(module[1]) as frozen:
        assert state() == (False, False)
        assert frozen(torch.ones(1, 4)).shape == (1, 1)
    with ls.evaluating(module):
        assert not module[0].training
    assert module[0].training
    assert not hasattr(module[1], "training")


def test_an_exported_module_is_refused_with_what_to_do() -> None:
    exported = torch.export.export(nn.Linear(4, 1), (torch.ones(1, 4),)).module()
    before = flags(exported)
    with (
        pytest.raises(NotImplementedError, match=r"Export it in the mode in which it is to run, `torch\.export"),
        ls.evaluating(exported),
    ):
        pass
    assert flags(exported) == before
    assert state() == (True, False)


def test_a_module_whose_eval_fails_is_left_as_it_was() -> None:
    class Refuses(nn.Linear):
        def train(self, mode: bool = True) -> Any:
            if not mode:
                raise RuntimeError("no eval here")
            return super().train(mode)

    module = Refuses(2, 2)
    with pytest.raises(RuntimeError, match="no eval here"), ls.evaluating(module):
        pass
    assert state() == (True, False)
    assert module.training


@pytest.mark.parametrize("wrong", [None, "model", [nn.Linear(1, 1)], lambda: None])
def test_what_is_no_module_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"torch\.nn\.Module to evaluate, got"):
        ls.evaluating(wrong)


@pytest.mark.parametrize("wrong", ["grad", "", None, True])
def test_another_mode_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="`mode` must be one of auto, no_grad, inference_mode, got"):
        ls.evaluating(net(), mode=wrong)


def test_what_runs_after_the_call_has_returned_is_refused() -> None:
    def batches() -> Any:
        yield 1

    async def later() -> None: ...

    async def batches_later() -> Any:
        yield 1

    for function in (batches, later, batches_later):
        decorate: Callable[..., Any] = ls.evaluating(net())
        with pytest.raises(TypeError, match=r"Write `with evaluating\(model\):` inside it"):
            decorate(function)
