"""One run of the demo, in a process of its own: ``python -m lightning_speedups.demo.child SETTINGS``.

Events leave on standard output, one JSON object a line; whatever the program and its libraries print goes to
standard error.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytorch_lightning as pl
from pytorch_lightning.loggers import CSVLogger

from lightning_speedups.demo import images, program
from lightning_speedups.demo.clock import Emit, RunClock
from lightning_speedups.demo.measures import CallbackAccount, RunResult, RunSettings
from lightning_speedups.demo.neighbours import OthersCpu
from lightning_speedups.demo.pack import PARTS

if TYPE_CHECKING:
    from collections.abc import Sized


def run(settings: RunSettings, emit: Emit) -> RunResult:
    """Train once and measure it; ``emit`` gets the events while it runs."""
    pl.seed_everything(settings.seed, workers=True)
    train, validation, test = program.loaders(images.samples(Path(settings.images))[:: settings.every])
    module = program.DigitClassifier()
    clock = RunClock(emit)
    added = [part.make() for part in PARTS] if settings.pack else []
    trainer = pl.Trainer(
        max_epochs=settings.epochs,
        devices=1,
        logger=CSVLogger("."),
        callbacks=[clock, *added],
        enable_progress_bar=False,
    )
    others = OthersCpu()
    clock.start()
    trainer.fit(module, train, validation)
    wall_s = clock.elapsed_s()
    others_cpu_pct = others.pct()
    return RunResult(
        epochs_planned=settings.epochs,
        epochs_run=len(clock.points),
        samples=clock.samples,
        train_samples_per_s=clock.samples / (wall_s - clock.evaluation_s),
        wall_s=wall_s,
        evaluation_s=clock.evaluation_s,
        others_cpu_pct=others_cpu_pct,
        curve=tuple(clock.points),
        final_val_acc=float(trainer.validate(module, validation, verbose=False)[0]["val_acc"]),
        final_test_acc=float(trainer.test(module, test, verbose=False)[0]["test_acc"]),
        test_images=len(cast("Sized", test.dataset)),
        callbacks=tuple(_account(part.name, part.call, made) for part, made in zip(PARTS, added, strict=False)),
    )


def _account(name: str, call: str, callback: Any) -> CallbackAccount:
    return CallbackAccount(name, call, str(callback.report), callback.report.to_dict())


def main() -> None:
    """Run what the first argument says and end with a ``result`` event."""
    events = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def emit(event: dict[str, Any]) -> None:
        # The parent is gone when this raises BrokenPipeError, which ends the run: nobody waits for it any more.
        events.write(json.dumps(event) + "\n")
        events.flush()

    result = run(RunSettings(**json.loads(sys.argv[1])), emit)
    emit({"event": "result", "result": result.to_dict()})


if __name__ == "__main__":
    main()
