"""The pack's callbacks in the demo: the one list to which a new capability adds itself, with its share of the gain."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lightning_speedups.demo.measures import RunResult


@dataclass(frozen=True)
class Share:
    """How many seconds of wall time a callback took off the run, and how that was found."""

    seconds: float
    how: str


@dataclass(frozen=True)
class Part:
    """One callback of the pack, with the arguments that a user would write.

    Args:
        name: its public name.
        args: positional arguments.
        kwargs: keyword arguments.
        share: its own part of the gain, from what the stock run and the pack's run measured.
    """

    name: str
    share: Callable[[RunResult, RunResult], Share]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def call(self) -> str:
        """The line of code that makes it."""
        arguments = [repr(arg) for arg in self.args] + [f"{key}={value!r}" for key, value in self.kwargs.items()]
        return f"ls.{self.name}({', '.join(arguments)})".replace("'", '"')

    def make(self) -> Any:
        """The callback."""
        import lightning_speedups as ls

        return getattr(ls, self.name)(*self.args, **self.kwargs)


def epochs_not_run(stock: RunResult, pack: RunResult) -> Share:
    """The time that the stock run spent in the epochs that the pack's run left out."""
    left_out = len(stock.curve) - len(pack.curve)
    if left_out <= 0:
        return Share(0.0, "left out no epoch")
    seconds = stock.curve[-1].end_s - stock.curve[pack.epochs_run - 1].end_s
    return Share(seconds, f"the {left_out} epochs it left out, as timed in the stock run")


def no_time(stock: RunResult, pack: RunResult) -> Share:
    """For what watches a run and does not make it faster; its own cost is in the rest."""
    return Share(0.0, "saves no time here: it checks evaluation and says its modes")


PARTS = (
    Part(
        "EarlyStopping",
        args=("val_acc",),
        kwargs={"mode": "max", "patience": 10, "restore_best": True},
        share=epochs_not_run,
    ),
    Part("NoGradEvaluation", share=no_time),
)
