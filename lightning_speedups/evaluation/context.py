"""``evaluating(module)``: evaluation mode for a hand-written loop, and everything back as it was afterwards."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Generic, Literal, TypeVar

import torch
from torch import nn

from lightning_speedups.evaluation.inference_tensors import InferenceTensors

Module = TypeVar("Module", bound=nn.Module)
Result = TypeVar("Result")
_MODES = ("auto", "no_grad", "inference_mode")
_RUNNING_LATER = (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)


class evaluating(Generic[Module]):
    """Evaluate a module in a hand-written loop: eval mode, no gradients, and everything back as it was.

    ``model.eval()`` before and ``model.train()`` after a loop switch parts on that were frozen, and stay undone where
    the loop raises. Here each submodule gets back the flag that it had, and the gradient mode is that of before, also
    after an exception and where blocks are nested. What the block itself switches is put back too.

    Args:
        module: the module; it is what ``with ... as`` gives.
        mode: ``"no_grad"``, ``"inference_mode"`` or ``"auto"``, which is no_grad: what the block computes can then be
            used in training, and code inside may turn gradients on with ``torch.enable_grad()``. inference_mode gains
            a few per cent at best; tensors that it leaves on the module are cloned, so that training can use them.

    Raises:
        TypeError: for anything but a module, or where it decorates a generator or coroutine, which runs later.
        ValueError: for another mode.
        NotImplementedError: on entering, where a part cannot be set to eval mode, as what ``torch.export`` gives.

    Source: ``torch.inference_mode`` and "Locally disabling gradient computation" in torch's documentation.

    Example:
        >>> layer = torch.nn.Dropout(0.5)
        >>> with evaluating(layer) as dropout:
        ...     dropout.training, torch.is_grad_enabled()
        (False, False)
        >>> layer.training, torch.is_grad_enabled()
        (True, True)
    """

    def __init__(self, module: Module, mode: Literal["auto", "no_grad", "inference_mode"] = "auto") -> None:
        if not isinstance(module, nn.Module):
            raise TypeError(
                f"evaluating() takes the torch.nn.Module to evaluate, got {module!r} of type {type(module).__name__};"
                " as a decorator it is written with the module: @evaluating(model)"
            )
        if mode not in _MODES:
            raise ValueError(f"`mode` must be one of {', '.join(_MODES)}, got {mode!r}")
        self._module, self._mode = module, mode
        self._open: list[ExitStack] = []

    def __enter__(self) -> Module:
        module, inference = self._module, self._mode == "inference_mode"
        # A module frozen by torch.jit has no flag: its mode is settled.
        flags = [(part, getattr(part, "training", None)) for part in module.modules()]
        with ExitStack() as stack:
            stack.callback(_put_back, flags)
            if inference:
                stack.callback(InferenceTensors(module).clone_new, module)
            stack.enter_context(torch.inference_mode() if inference else torch.no_grad())
            _to_eval(module)
            self._open.append(stack.pop_all())
        return module

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.pop().__exit__(kind, error, trace)

    def __call__(self, function: Callable[..., Result]) -> Callable[..., Result]:
        """The function, which evaluates the module whenever it is called."""
        if any(runs_later(function) for runs_later in _RUNNING_LATER):
            raise TypeError(
                f"evaluating() cannot decorate {function.__qualname__}: a generator or coroutine runs after the call"
                " has returned. Write `with evaluating(model):` inside it, around what does not yield"
            )

        @functools.wraps(function)
        def evaluated(*args: Any, **kwargs: Any) -> Result:
            with self:
                return function(*args, **kwargs)

        return evaluated


def _to_eval(module: nn.Module) -> None:
    try:
        module.eval()
    except NotImplementedError as error:
        raise NotImplementedError(
            f"evaluating() cannot set this {type(module).__name__} to eval mode ({error}): what torch.export gives"
            " keeps the mode in which it was exported. Export it in the mode in which it is to run,"
            " `torch.export.export(model.eval(), ...)`, and call it under `torch.no_grad()`"
        ) from error


def _put_back(flags: list[tuple[nn.Module, bool | None]]) -> None:
    for part, training in flags:
        # Not ``part.train(training)``, which would set the parts within it as well.
        if training is not None:
            part.training = training
        elif hasattr(part, "training"):
            # It came with the ``eval()`` of a module around it.
            del part.training
