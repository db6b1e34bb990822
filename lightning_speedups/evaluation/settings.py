"""The loops that evaluate, the modes that they can run in, and the callback's arguments checked. No Lightning."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, cast

Loop: TypeAlias = Literal["fit_validation", "sanity", "validate", "test", "predict"]
Mode: TypeAlias = Literal["grad", "no_grad", "inference_mode"]

LOOPS: Final[tuple[Loop, ...]] = ("fit_validation", "sanity", "validate", "test", "predict")
LOOP_NAMES: Final[dict[str, str]] = {
    "fit_validation": "validation inside fit",
    "sanity": "the sanity check",
    "validate": "validate",
    "test": "test",
    "predict": "predict",
}
STEPS: Final[dict[str, str]] = {
    "fit_validation": "validation_step",
    "sanity": "validation_step",
    "validate": "validation_step",
    "test": "test_step",
    "predict": "predict_step",
}
OUTPUTS: Final = ("keep", "cpu", "drop")
_REQUESTS: Final = ("auto", "no_grad", "inference_mode")


@dataclass(frozen=True)
class Options:
    """The callback's arguments, checked.

    Attributes:
        requests: the modes asked for, by loop.
        eval_batch_size: samples in a batch of validation and test; None for the loaders' own.
        outputs: what is kept of test and predict.
        free_grads: whether gradients are dropped before validation.
        isolate_grads: whether they are taken away during evaluation.
    """

    requests: dict[Loop, Mode]
    eval_batch_size: int | None
    outputs: Literal["keep", "cpu", "drop"]
    free_grads: bool
    isolate_grads: bool

    def request(self, loop: Loop) -> Mode | None:
        """The mode asked for; the sanity check follows validation inside fit unless it has its own."""
        return self.requests.get(self.asked_through(loop))

    def asked_through(self, loop: Loop) -> Loop:
        """The loop whose entry in ``mode`` decides on this one."""
        return "fit_validation" if loop == "sanity" and loop not in self.requests else loop


def checked_modes(mode: Any) -> dict[Loop, Mode]:
    """The modes asked for by loop; a loop for which none was asked is left out.

    Raises:
        ValueError: for anything but ``"auto"``, or a dict from loops to modes.
    """
    if mode == "auto":
        return {}
    if not isinstance(mode, dict):
        raise ValueError(
            f"`mode` must be 'auto', or a dict from a loop to a mode such as {{'test': 'no_grad'}}, got {mode!r}"
        )
    for loop, request in mode.items():
        if loop not in LOOPS:
            raise ValueError(f"`mode` must name loops out of {', '.join(LOOPS)}, got {loop!r}")
        if request not in _REQUESTS:
            raise ValueError(
                f"`mode[{loop!r}]` must be one of {', '.join(_REQUESTS)}, got {request!r}. To have gradients, ask for"
                " 'no_grad' and turn them on where you need them, with `torch.enable_grad()`"
            )
    return {loop: cast("Mode", request) for loop, request in mode.items() if request != "auto"}


def checked_options(callback: Any) -> Options:
    """The callback's arguments as options.

    Raises:
        ValueError: naming the argument, the value, what is allowed and the next step.
    """
    for name in ("free_grads", "isolate_grads"):
        value = getattr(callback, name)
        if not isinstance(value, bool):
            raise ValueError(f"`{name}` must be True or False, got {value!r}")
    if callback.outputs not in OUTPUTS:
        raise ValueError(f"`outputs` must be one of {', '.join(OUTPUTS)}, got {callback.outputs!r}")
    if callback.report_dir is not None and not isinstance(callback.report_dir, str | os.PathLike):
        raise ValueError(f"`report_dir` must be a path or None, got {callback.report_dir!r}")
    _check_batch_size(callback.eval_batch_size)
    return Options(
        requests=checked_modes(callback.mode),
        eval_batch_size=callback.eval_batch_size,
        outputs=callback.outputs,
        free_grads=callback.free_grads,
        isolate_grads=callback.isolate_grads,
    )


def _check_batch_size(size: Any) -> None:
    if size is None:
        return
    if size == "auto":
        raise ValueError(
            "`eval_batch_size='auto'` arrives with the batch-size planner, which measures what fits; until then pass a"
            " number of samples, such as four times the training batch"
        )
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ValueError(
            f"`eval_batch_size` must be a whole number of samples from 1 on, or None to keep the loaders' own, got"
            f" {size!r}"
        )
