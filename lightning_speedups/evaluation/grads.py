"""The gradients that parameters hold while an evaluation runs: noted, stashed, freed, compared. No Lightning."""

from __future__ import annotations

import weakref

from torch import Tensor, nn

from lightning_speedups import _torch


class GradWatch:
    """What ``.grad`` was when the evaluation began, without keeping it alive."""

    def __init__(self, module: nn.Module) -> None:
        self._before = {
            name: (weakref.ref(parameter.grad), _torch.version_of(parameter.grad))
            for name, parameter in module.named_parameters()
            if parameter.grad is not None
        }

    def changed(self, module: nn.Module) -> list[str]:
        """The parameters whose gradient is another tensor now, or was changed in place."""
        return [name for name, parameter in module.named_parameters() if self._differs(name, parameter.grad)]

    def _differs(self, name: str, grad: Tensor | None) -> bool:
        if name not in self._before:
            return grad is not None
        reference, version = self._before[name]
        return grad is None or reference() is not grad or _torch.version_of(grad) != version


class Stash:
    """The gradients taken off the parameters until ``put_back``."""

    def __init__(self, module: nn.Module) -> None:
        self._grads = [(parameter, parameter.grad) for parameter in module.parameters()]
        for parameter, _ in self._grads:
            parameter.grad = None

    def put_back(self) -> None:
        """Every parameter has the gradient that it had; what the evaluation left is dropped."""
        for parameter, grad in self._grads:
            parameter.grad = grad
        self._grads = []


def free(module: nn.Module) -> int:
    """Drop all gradients and say how many bytes they were."""
    freed = 0
    for parameter in module.parameters():
        if parameter.grad is not None:
            freed += parameter.grad.untyped_storage().nbytes()
            parameter.grad = None
    return freed
