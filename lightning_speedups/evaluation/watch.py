"""One run of one evaluation loop, watched: what it leaves behind becomes issues. No Lightning, no hooks, no copies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lightning_speedups.evaluation import flags
from lightning_speedups.evaluation.grads import GradWatch
from lightning_speedups.evaluation.graphs import GraphWatch
from lightning_speedups.evaluation.inference_tensors import InferenceTensors
from lightning_speedups.evaluation.outputs import Pinned
from lightning_speedups.evaluation.report import EvaluationIssue, Kind
from lightning_speedups.evaluation.settings import LOOP_NAMES, STEPS, Loop, Mode
from lightning_speedups.evaluation.walk import tensors_on
from lightning_speedups.reporting import text

Report = Callable[[EvaluationIssue], None]
# Less than this is not worth a word, whatever the share.
_PINNED_WORTH_TELLING = 2**20


class LoopWatch:
    """Looks at a module at the points that a loop passes, and reports issues as they turn up.

    Args:
        loop: which loop runs.
        module: the module that it evaluates; not kept.
        report: takes the issues.
        count_backward: whether autograd's runs are counted too (see ``GraphWatch``).
    """

    def __init__(self, loop: Loop, module: nn.Module, report: Report, count_backward: bool) -> None:
        self.loop = loop
        self._step = STEPS[loop]
        self._report = report
        self._graph = GraphWatch(count_backward)
        self._grads = GradWatch(module)
        self.inference = torch.is_inference_mode_enabled()
        self._inference = InferenceTensors(module) if self.inference else None
        self._pinned = Pinned()
        self._gathered_before = {id(tensor) for tensor in _gathered(module)} if loop == "test" else set()

    def batch(self, module: nn.Module, first: bool) -> Mode:
        """Around each step: which mode is on, and on the first batch whether a part is in train mode."""
        names = flags.in_train_mode(module) if first else []
        if names:
            self._issue(
                "train_mode",
                flags.shown(names),
                f"in train mode during {LOOP_NAMES[self.loop]}: {flags.shown(names)}. Dropout and batch norm act there"
                " as in training; if that is not meant, look for `.train()` in the step and in the hooks before it",
            )
        if torch.is_grad_enabled():
            return "grad"
        return "inference_mode" if torch.is_inference_mode_enabled() else "no_grad"

    def outputs(self, outputs: Any, kept: bool) -> None:
        """What a step returned; ``kept`` where it is kept until the loop's end."""
        for path in self._graph.returned(outputs):
            what = f"{self._step}()" + (path if path.startswith("[") or not path else f".{path}")
            self._issue(
                "graph_kept",
                what,
                f"what {what} returns carries its graph, and all that the graph saved lives as long as it does. Return"
                " it detached, and give `create_graph=self.training` to torch.autograd.grad",
            )
        if kept:
            self._pinned.add(outputs)

    def before_epoch_end(self, module: nn.Module, logged: Mapping[str, Tensor]) -> None:
        """When all batches are through and the module still holds what it gathered."""
        for where in self._graph.stored(module):
            self._issue(
                "graph_kept",
                where,
                f"{where} holds results of {LOOP_NAMES[self.loop]} with their graph, which grows with each batch. Keep"
                " `.detach()` of them",
            )
        for name, value in logged.items():
            if value.grad_fn is not None:
                self._issue("graph_kept", name, f"the metric {name!r} is logged with its graph: log its `.detach()`")
        if self.loop == "test":
            self._pinned.add([tensor for tensor in _gathered(module) if id(tensor) not in self._gathered_before])
        self._tell_pinned()

    def end(self, module: nn.Module, isolated: bool) -> int:
        """When the loop is over; returns how often autograd ran in it. ``isolated``: gradients are put back next."""
        changed = _with_grad(module) if isolated else self._grads.changed(module)
        if changed:
            after = "they were put back (isolate_grads=True)"
            if not isolated:
                after = "the next optimizer step may use them; isolate_grads=True puts them back"
            self._issue(
                "grads_changed",
                flags.shown(changed),
                f"gradients changed by {LOOP_NAMES[self.loop]}: {flags.shown(changed)}; {after}. torch.autograd.grad"
                " returns gradients without adding to .grad",
            )
        return self._graph.backward_runs()

    def clone_inference_tensors(self, module: nn.Module) -> None:
        """After the loop, outside of its mode: what inference_mode made and the module kept is made usable."""
        for found in self._inference.clone_new(module) if self._inference is not None else ():
            at = f" at {found.line}" if found.line else ""
            then = {
                "cloned": "cloned, so that training can use it",
                "dropped": "dropped from its cache, so that training makes its own",
                "left": "it, or what shares its memory, cannot be replaced there: build it before, or ask for"
                f" mode={{{self.loop!r}: 'no_grad'}}",
            }
            message = f"{found.where} was created under inference_mode{at}; {then[found.fate]}"
            self._issue("inference_tensor", found.where, message)

    def flags_changed(self, module: nn.Module, before: Mapping[str, bool], hook: str | None) -> None:
        """After the loop: a part whose training flag is not what it was; ``hook`` is the module's own that sets it."""
        names = flags.changed(before, module)
        if names:
            now = {name or type(part).__name__: part.training for name, part in module.named_modules()}
            mode = "train" if now[names[0]] else "eval"
            cause = f"{hook} is overridden and sets it" if hook else "a hook sets it"
            self._issue(
                "train_mode",
                flags.shown(names),
                f"{flags.shown(names)} is in {mode} mode after {LOOP_NAMES[self.loop]} and was not before: {cause}",
            )

    def _tell_pinned(self) -> None:
        if self._pinned.pinned > max(_PINNED_WORTH_TELLING, self._pinned.used):
            self._issue(
                "output_storage",
                f"{self._step}()",
                f"the results of {self._step} are small views of large tensors: {text.size_of(self._pinned.used)} keep"
                f" {text.size_of(self._pinned.pinned + self._pinned.used)} alive. Pass outputs='cpu', or return"
                " `.clone()` of them",
            )

    def _issue(self, kind: Kind, where: str, message: str) -> None:
        self._report(EvaluationIssue(kind, where, message))


def _gathered(module: nn.Module) -> Iterator[Tensor]:
    """What the module holds in lists and dicts, as a test step does that gathers its results."""
    return (held.tensor for _, _, held in tensors_on(module) if "[" in held.path)


def _with_grad(module: nn.Module) -> list[str]:
    return [name for name, parameter in module.named_parameters() if parameter.grad is not None]
