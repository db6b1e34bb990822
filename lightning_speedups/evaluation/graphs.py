"""Whether an evaluation built a graph, ran autograd, or let a graph out; no hooks in the code of the program."""

from __future__ import annotations

from typing import Any

from torch import nn

from lightning_speedups import _torch
from lightning_speedups.evaluation.walk import tensors_in, tensors_on, whole


class GraphWatch:
    """Reads autograd's own counters before and after.

    Args:
        count_backward: also count how often the engine runs, which takes two tiny runs of it; not beside a compiler.
    """

    def __init__(self, count_backward: bool) -> None:
        self._runs = _torch.backward_runs() if count_backward else None
        self._position = _torch.graph_position()

    @property
    def built(self) -> bool:
        """Whether any autograd node was made since."""
        return _torch.graph_position() > self._position

    def backward_runs(self) -> int:
        """How often the engine ran since; 0 where it was not counted."""
        if self._runs is None or not self.built:
            return 0
        return _torch.backward_runs() - self._runs - 1

    def returned(self, outputs: Any) -> list[str]:
        """What in a step's outputs carries a graph, by its path; ``""`` is the output itself."""
        if not self.built:
            return []
        return [held.path for held in tensors_in(outputs) if held.tensor.grad_fn is not None]

    def stored(self, module: nn.Module) -> list[str]:
        """What the module holds that carries a graph built since, by its path without indices."""
        if not self.built:
            return []
        found = (
            f"{type(part).__name__}.{whole(held.path)}" + (f" ({name})" if name else "")
            for part, name, held in tensors_on(module)
            if _torch.built_since(held.tensor, self._position)
        )
        return list(dict.fromkeys(found))
