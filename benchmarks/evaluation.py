"""What evaluation without a graph saves in memory, and that NoGradEvaluation costs no time.

Memory is the peak of the live tensors of one evaluated batch above parameters and buffers: with a graph, as a loop
that forgot to turn gradients off has it, and in the Trainer with the callback. Time is that of whole calls of
``Trainer.validate`` and ``Trainer.fit``, with and without the callback by turns, beside stock against itself; and of
the bare forward under no_grad and under inference_mode, which is all that Lightning forgoes inside fit.
"""

from __future__ import annotations

import logging
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict

import harness
import pytorch_lightning as pl
import torch
from evaluating.live import peak_of
from evaluating.program import BATCH, Cnn, images, trainer

import lightning_speedups as ls
from lightning_speedups.measuring.paired import PairedResult, interleaved
from lightning_speedups.reporting import terminal, text


def measure(quick: bool) -> harness.Measurement:
    """Memory once: it is exact; the times pair by pair."""
    torch.set_num_threads(1)
    pairs = 6 if quick else 24
    with_graph, without_graph, told = memory()
    validating = paired(lambda callbacks: timed_validate(callbacks, 6 if quick else 40), pairs)
    fitting = paired(lambda callbacks: timed_fit(callbacks, 3 if quick else 8), pairs)
    modes = bare_forward(pairs)
    figures = {
        "memory_ratio": with_graph / without_graph,
        "graph_told_over_measured": told / (with_graph - without_graph),
        "validate_samples_ratio": 1 / validating.ratio.median,
        "validate_samples_ratio_high": 1 / validating.ratio.low,
        "fit_time_ratio": fitting.ratio.median,
        "fit_share_pct": min(share_pct(3 if quick else 8) for _ in range(3)),
        "inference_mode_gain_pct": 100 * (1 - modes.ratio.median),
    }
    details = {
        "bytes_with_graph": with_graph,
        "bytes_without_graph": without_graph,
        "graph_bytes_avoided": told,
        "validate": asdict(validating),
        "fit": asdict(fitting),
        "inference_mode": asdict(modes),
    }
    return harness.Measurement(figures, [_memory_table(with_graph, without_graph, told), _time_table(details)], details)


def memory() -> tuple[int, int, int]:
    """Peak bytes above the parameters with a graph and without, and what the callback says that it avoided."""
    torch.manual_seed(0)
    module, data = Cnn(), images(1)
    permanent = [*module.parameters(), *module.buffers(), *data.dataset.tensors]
    (pictures, labels) = next(iter(data))
    module.eval()
    loss = torch.nn.functional.cross_entropy
    with_graph = peak_of(lambda: loss(module(pictures), labels), permanent)
    module.train()
    callback = ls.NoGradEvaluation()
    made = trainer(callback, max_epochs=1)
    made.fit(module, data, data)
    without_graph = peak_of(lambda: made.validate(module, data, verbose=False), permanent)
    told = callback.report.graph_bytes_avoided
    if told is None or set(callback.report.modes) != {"fit_validation", "validate"}:
        raise RuntimeError(f"the callback did not measure the training step: {callback.report}")
    return with_graph, without_graph, told


def paired(run: Callable[[bool], float], pairs: int) -> PairedResult:
    """The same call without the callback and with it, by turns."""
    return interleaved(lambda: run(False), lambda: run(True), pairs=pairs, warm_up=2, a_a=True)


def timed_validate(with_callback: bool, batches: int) -> float:
    """Seconds of one ``Trainer.validate``."""
    module, data = Cnn(), images(batches)
    made = trainer(*([ls.NoGradEvaluation()] if with_callback else []))
    started = time.perf_counter()
    made.validate(module, data, verbose=False)
    return time.perf_counter() - started


def timed_fit(with_callback: bool, batches: int) -> float:
    """Seconds of one ``Trainer.fit`` with two epochs and two validations."""
    module, data = Cnn(), images(batches)
    made = trainer(*([ls.NoGradEvaluation()] if with_callback else []), max_epochs=2)
    started = time.perf_counter()
    made.fit(module, data, data)
    return time.perf_counter() - started


def share_pct(batches: int) -> float:
    """The wall time of the callback's own hooks, summed, as a share of a fit."""
    callback, own_s = ls.NoGradEvaluation(), [0.0]

    def timed(hook: Callable[..., object]) -> Callable[..., None]:
        def call(*args: object, **kwargs: object) -> None:
            started = time.perf_counter()
            hook(*args, **kwargs)
            own_s[0] += time.perf_counter() - started

        return call

    for name in dir(pl.Callback):
        if name in ("setup", "teardown") or name.startswith("on_"):
            setattr(callback, name, timed(getattr(callback, name)))
    module, data = Cnn(), images(batches)
    made = trainer(callback, max_epochs=2)
    started = time.perf_counter()
    made.fit(module, data, data)
    return 100 * own_s[0] / (time.perf_counter() - started)


def bare_forward(pairs: int) -> PairedResult:
    """The net's forward alone, under no_grad and under inference_mode."""
    module, (pictures, _) = Cnn().eval(), next(iter(images(1)))

    def forward(mode: Callable[[], torch.no_grad | torch.inference_mode]) -> None:
        with mode():
            for _ in range(3):
                module(pictures)

    return interleaved(lambda: forward(torch.no_grad), lambda: forward(torch.inference_mode), pairs=2 * pairs, a_a=True)


def _memory_table(with_graph: int, without_graph: int, told: int) -> object:
    rows = [
        ("with a graph", text.size_of(with_graph)),
        ("in Trainer.validate with NoGradEvaluation", text.size_of(without_graph)),
        ("report.graph_bytes_avoided, from a training step", text.size_of(told)),
    ]
    caption = f"a 12-layer CNN, batch {BATCH}; live tensors at the peak, parameters, buffers and images left out"
    return terminal.table("Memory of one evaluated batch", ("what", "bytes"), rows, numeric=("bytes",), caption=caption)


def _time_table(details: dict[str, object]) -> object:
    names = {
        "validate": "Trainer.validate, with the callback / stock",
        "fit": "Trainer.fit, with the callback / stock",
        "inference_mode": "forward, inference_mode / no_grad",
    }
    rows = []
    for key, name in names.items():
        ratio, noise = details[key]["ratio"], details[key]["noise"]  # type: ignore[index]
        rows.append(
            (name, *(f"{each['median']:.3f} [{each['low']:.3f}, {each['high']:.3f}]" for each in (ratio, noise)))
        )
    caption = "time ratios of pairs, median [95 % interval]; A/A: the first against itself, the noise of the machine"
    return terminal.table("Time", ("what", "ratio", "A/A"), rows, numeric=("ratio", "A/A"), caption=caption)


if __name__ == "__main__":
    warnings.filterwarnings("ignore", module="pytorch_lightning")
    warnings.filterwarnings("ignore", message="NoGradEvaluation")
    logging.getLogger("pytorch_lightning.utilities.rank_zero").setLevel(logging.ERROR)
    sys.exit(harness.main("evaluation", measure, __doc__))
