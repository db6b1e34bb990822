"""Modules that need something special in evaluation, shared by the tests of this folder."""

from __future__ import annotations

from typing import Any

import torch

from tests.helpers import ScriptedModule


def issues(callback: Any, kind: str) -> list[str]:
    return [issue.where for issue in callback.report.issues if issue.kind == kind]


class Scaled(ScriptedModule):
    """Evaluates with ``forward``; the kinds below build what it needs when it is first needed."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.linear(x) * self.factor()).sum(1)

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self(batch[0])

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self(batch[0])

    def predict_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return self(batch[0])


class AsAttribute(Scaled):
    def factor(self) -> torch.Tensor:
        if not hasattr(self, "scale"):
            self.scale = torch.ones(1) * 2
        return self.scale


class Force(ScriptedModule):
    """Forces are minus the gradient of an energy: needed in evaluation too."""

    def forces(self, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            x = x.clone().requires_grad_()
            energy = self.linear(x).square().sum()
            return -torch.autograd.grad(energy, x, create_graph=self.training)[0]

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.found = self.forces(batch[0])

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.found = self.forces(batch[0])

    def predict_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return self.forces(batch[0])
