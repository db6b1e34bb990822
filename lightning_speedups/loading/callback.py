"""The ``DataLoaderTuner`` callback: meets the Trainer's loaders before they are used, and gives them their settings."""

from __future__ import annotations

import contextlib
import math
import warnings
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

import psutil
import torch.distributed
from torch.utils.data import DataLoader, IterableDataset

from lightning_speedups import _lightning
from lightning_speedups._lightning import LightningModule, StockCallback, Trainer
from lightning_speedups.loading import page, passive
from lightning_speedups.loading.children import Gather, alone
from lightning_speedups.loading.demand import StepClock
from lightning_speedups.loading.report import DataLoaderTunerReport
from lightning_speedups.loading.search import EPOCHS_ASSUMED
from lightning_speedups.loading.session import Session, Setting
from lightning_speedups.loading.settings import LoaderSettings
from lightning_speedups.loading.standalone import check_arguments, length_of, room_of
from lightning_speedups.measuring.budget import CpuBudget, Limits, cpu_budget
from lightning_speedups.reporting import plots

_MODES = ("before_fit", "passive")
_LIGHTNINGS_ADVICE = r"The '\w+_dataloader' does not have many workers"
_TORCHS_ADVICE = r"This DataLoader will create \d+ worker processes in total"


class DataLoaderTuner(StockCallback):
    """Find out how many workers a loader needs, and give it those: measured, proven safe, applied inside the fit.

    A loader that is too slow starves the training step, and one with too many workers wastes memory, or is slower than
    none at all; which it is depends on the dataset, the step and the machine. This callback measures each loader in
    a child process before it is used, so that the dataset, the sampler and all random streams of the training process
    stay as they are, and takes the fewest workers that feed the step. It sets ``num_workers``, ``prefetch_factor``,
    ``persistent_workers`` and ``pin_memory``, and nothing else. More workers than the loader has are tried only where
    it is shown that the same samples come out: see ``LoaderPlan.refused``.

    Random augmentation streams change with the worker count: said where it applies. ``PerSampleSeed`` prevents it.

    Args:
        mode: ``"before_fit"`` measures in a child process before the first epoch and decides again after it, with the
            real step. ``"passive"`` tries nothing: it changes settings between epochs, by what they showed.
        apply: give the loaders their settings; with False it only advises.
        time_budget_s: the most seconds that it holds up the run; less where loading has less to save.
        tolerance: a smaller share of an epoch's time is no difference.
        limits: CPUs, memory, shared memory and open files, instead of the machine's own.
        cache: a file that keeps the plans, so that the next run with the same loaders need not measure.
        report_dir: folder for ``data_loader_tuner.json``, ``data_loader_tuner.png`` and ``report.html``.

    Raises:
        MisconfigurationException: at construction for a wrong argument, at setup for another namespace's Trainer.

    Logs no key. Suggested settings and their worth: ``docs/data_loader_tuner.md``.

    Example:
        >>> import lightning_speedups as ls
        >>> callback = ls.DataLoaderTuner(time_budget_s=10)
    """

    namespace: ClassVar[str]
    _session: Session | None = None
    _hooks: _lightning.LoaderHooks | None = None
    _voice: _lightning.Voice
    _clock: StepClock
    _cpus: CpuBudget | None
    _expected: set[int] | None
    _filters: list[Any]

    def __init__(
        self,
        mode: Literal["before_fit", "passive"] = "before_fit",
        apply: bool = True,
        time_budget_s: float = 20.0,
        tolerance: float = 0.02,
        limits: Limits | None = None,
        cache: str | Path | None = None,
        *,
        report_dir: str | Path | None = None,
    ) -> None:
        self.mode, self.apply, self.time_budget_s, self.tolerance = mode, apply, time_budget_s, tolerance
        self.limits, self.cache, self.report_dir = limits, cache, report_dir
        try:
            _checked(self)
        except (TypeError, ValueError) as error:
            raise _lightning.misconfiguration(self.namespace, f"DataLoaderTuner: {error}") from error
        self._report, self._filters = DataLoaderTunerReport((), None, 0.0), []
        self._begin()

    @property
    def report(self) -> DataLoaderTunerReport:
        """What was found so far in this fit, or in the last one."""
        if self._session is None:
            return self._report
        return DataLoaderTunerReport(self._session.plans, self._cpus, self._session.spent_s)

    def plot(self, path: str | Path) -> None:
        """Draw samples per second of every setting that was tried, as a PNG file at ``path``."""
        plots.save_png(page.rates(self.report), Path(path))

    def state_dict(self) -> dict[str, Any]:
        """The settings decided on, for whoever reads the checkpoint; a resumed run measures anew."""
        return {"plans": {f"{plan.stage} {plan.index}": dict(plan.after) for plan in self.report.plans}}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Stand where the loaders come by."""
        _lightning.require_same_namespace(self, trainer)
        if stage != "fit" or trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        self._begin()
        ranks = max(1, trainer.num_devices)
        self._cpus = cpu_budget(self.limits, local_ranks=ranks)
        setting = Setting(
            apply=self.apply,
            time_budget_s=self.time_budget_s,
            tolerance=self.tolerance,
            cpus=self._cpus,
            room=room_of(self.limits),
            device=trainer.strategy.root_device.type,
            ranks=ranks,
            cache=None if self.cache is None else Path(self.cache),
            gather=_gather_of(trainer),
            may_persist=not trainer.reload_dataloaders_every_n_epochs,  # type: ignore[attr-defined]
        )
        self._session = Session(setting, self._voice.say, self._voice.warn)
        self._clock = StepClock(setting.device)
        self._hooks = _lightning.LoaderHooks(
            trainer, self._loaders_asked_for, lambda loader: self._loader_ready(trainer, loader)
        )

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Time the step; see once that the workers are there."""
        if self._session is None:
            return
        if self._expected is not None:
            self._session.keep_streams()
            self._count_workers(self._session, self._expected)
        self._clock.starts()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Time the step."""
        if self._session is not None:
            self._clock.ends()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A validation between two steps is no wait for data."""
        if self._session is not None:
            self._clock.interrupted()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Decide again, now that the step is known; later, see that the decision still holds."""
        if self._session is None:
            return
        with self._failing_closed("at the end of an epoch"):
            self._between_epochs(trainer, self._session)
        self._clock = StepClock(trainer.strategy.root_device.type)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report."""
        if self._session is not None and self.report_dir is not None and trainer.is_global_zero:
            page.write(self.report_dir, self.report)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Give the loaders their own settings again."""
        if self._session is not None:
            undone = self._session.roll_back()
            if undone:
                self._voice.say(f"rolled back to the program's own settings: {', '.join(undone)}")
        self._end()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Let go of everything; the loaders keep their settings, which are what this callback is for."""
        if stage == "fit":
            self._end()

    def _loaders_asked_for(self, stage: str, count: int) -> None:
        self._stage, self._count, self._next = stage, count, 0

    def _loader_ready(self, trainer: Trainer, loader: Any) -> None:
        session, index = self._session, self._next
        self._next += 1
        if session is None:
            return
        batches, epochs = _amount(trainer, self._stage, loader)
        with self._failing_closed(f"on {self._stage}_dataloader"):
            if self.mode == "passive":
                passive.note(session, self._stage, index, loader)
            else:
                session.ready(self._stage, index, self._count, loader, batches, epochs)
            self._answer_advice(session, self._stage, index)
            if self._stage == "train" and index == self._count - 1:
                self._expect_workers(session)

    def _between_epochs(self, trainer: Trainer, session: Session) -> None:
        self._epochs_seen += 1
        left = _epochs_left(trainer) - 1
        told = _gather_of(trainer)(self._clock.demand())
        slowest = max((one for one in told if one is not None), key=lambda one: one.step.wall_s, default=None)
        if slowest is None or None in told:
            return
        for tuned in [tuned for (stage, _), tuned in session.tuned.items() if stage == "train"]:
            if self.mode == "passive":
                passive.between_epochs(session, tuned, slowest)
                continue
            if self._epochs_seen <= 2:
                session.realised(tuned, slowest)
            if self._epochs_seen == 1 and left >= 1:
                session.once_more(tuned, slowest, left)
            else:
                session.watch(tuned)
        self._expect_workers(session)

    def _expect_workers(self, session: Session) -> None:
        """Note the child processes of now, where workers were set: they must come on top of them."""
        set_here = any(tuned.plan.applied for (stage, _), tuned in session.tuned.items() if stage == "train")
        self._expected = {child.pid for child in psutil.Process().children()} if set_here else None

    def _count_workers(self, session: Session, before: set[int]) -> None:
        self._expected = None
        wanted = 0
        for (stage, _), tuned in session.tuned.items():
            loader = tuned.loader() if stage == "train" and tuned.plan.applied else None
            # Workers of a short epoch, or of a stream, may have done their work and ended by now.
            if loader is None or isinstance(loader.dataset, IterableDataset) or loader.persistent_workers:
                continue
            if length_of(loader) > LoaderSettings.of(loader).in_flight + 1:
                wanted += loader.num_workers
        found = len({child.pid for child in psutil.Process().children()} - before)
        if found < wanted:
            undone = session.roll_back()
            self._voice.warn(
                f"{wanted} workers were set and {found} are running: rolled back from the next epoch on"
                f" ({', '.join(undone)}); a loader with an __iter__ of its own can cause it"
            )

    def _answer_advice(self, session: Session, stage: str, index: int) -> None:
        """Silence "does not have many workers" where few were measured to be right."""
        tuned = session.tuned.get((stage, index))
        if tuned is None or tuned.chosen is None or not self.apply:
            return
        few = tuned.plan.after["num_workers"] < 2
        self._silence(_LIGHTNINGS_ADVICE if few else _TORCHS_ADVICE)

    def _silence(self, message: str) -> None:
        warnings.filterwarnings("ignore", message=message)
        self._filters.append(warnings.filters[0])

    @contextlib.contextmanager
    def _failing_closed(self, where: str) -> Any:
        try:
            yield
        except Exception as error:  # noqa: BLE001  whatever breaks here must not break the fit; it is told, once
            self._voice.warn(
                f"switched off: it failed {where} ({type(error).__name__}: {error}); training goes on with the"
                " settings that the loaders have"
            )
            self._end()

    def _begin(self) -> None:
        self._end_hooks()
        self._session, self._cpus = None, None
        self._clock, self._epochs_seen = StepClock("cpu"), 0
        self._expected = None
        self._loaders_asked_for("train", 1)
        self._voice = _lightning.Voice(self.namespace, "DataLoaderTuner")

    def _end(self) -> None:
        """Keep the report, and nothing of the fit."""
        self._end_hooks()
        if self._session is not None:
            self._report = self.report
        self._session = None

    def _end_hooks(self) -> None:
        if self._hooks is not None:
            self._hooks.detach()
        self._hooks = None
        for entry in self._filters:
            # A `catch_warnings` block may have taken it off already.
            with contextlib.suppress(ValueError):
                cast("list[Any]", warnings.filters).remove(entry)
        self._filters = []


def _checked(callback: DataLoaderTuner) -> None:
    if callback.mode not in _MODES:
        raise ValueError(f"mode must be one of {_MODES}, got {callback.mode!r}")
    if not isinstance(callback.apply, bool):
        raise TypeError(f"apply must be True or False, got {callback.apply!r}")
    if callback.limits is not None and not isinstance(callback.limits, Limits):
        raise TypeError(f"limits must be a lightning_speedups.Limits or None, got {callback.limits!r}")
    check_arguments(callback.time_budget_s, callback.tolerance)


def _gather_of(trainer: Any) -> Gather:
    return _everyones if trainer.world_size > 1 and torch.distributed.is_initialized() else alone


def _everyones(value: Any) -> list[Any]:
    """Every rank's value, in the order of the ranks."""
    values: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(values, value)
    return values


def _amount(trainer: Any, stage: str, loader: Any) -> tuple[float, float]:
    """Batches of a loader in an epoch, and epochs to come."""
    length = length_of(loader) if isinstance(loader, DataLoader) else math.inf
    limit = trainer.limit_train_batches if stage == "train" else trainer.limit_val_batches
    batches = min(length, limit) if isinstance(limit, int) else length * limit
    epochs = _epochs_left(trainer, batches if stage == "train" else None)
    if stage == "val":
        epochs /= trainer.check_val_every_n_epoch or 1
    return batches, epochs


def _epochs_left(trainer: Any, batches: float | None = None) -> float:
    """Epochs to come, the running one included; an assumption where the run has no end."""
    most = trainer.max_epochs
    epochs = EPOCHS_ASSUMED if most is None or most < 0 else float(most - trainer.current_epoch)
    if batches and trainer.max_steps is not None and trainer.max_steps >= 0:
        left = (trainer.max_steps - trainer.global_step) * trainer.accumulate_grad_batches
        epochs = min(epochs, left / batches) if most is not None and most >= 0 else left / batches
    return epochs
