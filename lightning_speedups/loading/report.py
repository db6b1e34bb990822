"""What tuning a loader reports: what was measured, refused, decided, and what it brought."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from lightning_speedups.loading.settings import LoaderSettings
from lightning_speedups.measuring.budget import CpuBudget
from lightning_speedups.reporting import text
from lightning_speedups.reporting.records import Record

RefusalKind = Literal[
    "unpicklable",
    "duplicates_data",
    "shared_handle",
    "records_differ",
    "stateful",
    "shm",
    "memory",
    "open_files",
    "worker_died",
    "too_noisy",
    "not_a_dataloader",
]


@dataclass(frozen=True)
class Refusal(Record):
    """Something that the tuner did not do, and why.

    Attributes:
        kind: one of the eleven of ``RefusalKind``.
        where: the attribute, setting or part that stands in the way.
        message: the reason and, where there is one, the way round it.
    """

    kind: RefusalKind
    where: str
    message: str


@dataclass(frozen=True)
class LoaderTrial(Record):
    """One setting that was tried, or skipped because it would not have fitted.

    Attributes:
        settings: the four settings by name.
        samples_per_s: unique samples per second, the emulated step included; None where it was not tried.
        low: lower end of the trials.
        high: upper end of the trials.
        rss_mib: memory that its workers have to themselves; None where the system does not tell.
        verdict: what came of it, in a few words.
    """

    settings: dict[str, Any]
    samples_per_s: float | None
    low: float | None
    high: float | None
    rss_mib: float | None
    verdict: str


@dataclass(frozen=True)
class LoaderPlan(Record):
    """One loader: its settings before and after, and the evidence.

    Attributes:
        stage: "train", "validate", or "loader" where there is no Trainer.
        index: which of the stage's loaders.
        before: the four settings as the program gave them.
        after: the settings decided on; equal to ``before`` where nothing is to change.
        applied: whether the loader now has them.
        loading_is_the_limit: whether the step waited for data before; None where the step is not known.
        trials: what was tried.
        refused: what was not, and why.
        cacheable: whether a sample always comes out the same, so that it could be stored; None where not looked at.
        gain_predicted: how many times as fast an epoch is as before, by the trials.
        gain_realised: the same, measured in the first epoch with the new settings; None without one.
        message: the decision in words.
        advice: what else would help, and what to mind.
    """

    stage: str
    index: int
    before: dict[str, Any]
    after: dict[str, Any]
    applied: bool
    loading_is_the_limit: bool | None
    trials: tuple[LoaderTrial, ...]
    refused: tuple[Refusal, ...]
    cacheable: bool | None
    gain_predicted: float | None
    gain_realised: float | None
    message: str
    advice: tuple[str, ...] = ()

    @property
    def changed(self) -> bool:
        """Whether other settings were decided on."""
        return self.before != self.after

    @property
    def code(self) -> str:
        """The arguments to paste into ``DataLoader(...)``."""
        return LoaderSettings.from_dict(self.after).as_code() if self.after else ""

    def __str__(self) -> str:
        lines = [f"{self.stage} loader {self.index}: {self.message}"]
        if self.changed:
            lines.append(f"  DataLoader(..., {self.code})")
        lines += [f"  refused ({refusal.kind}): {refusal.message}" for refusal in self.refused]
        lines += [f"  {advice}" for advice in self.advice]
        if self.trials:
            from lightning_speedups.reporting import terminal

            columns, rows = trials_table(self)
            shown = terminal.render(terminal.table("Trials", columns, rows, numeric=("samples/s",)))
            lines += [f"  {line}" for line in shown.splitlines()]
        return "\n".join(lines)


@dataclass(frozen=True)
class DataLoaderTunerReport(Record):
    """What ``DataLoaderTuner`` did in a fit.

    Attributes:
        plans: one for each loader.
        cpus: the CPUs that each rank may use, and how that was found; None before any loader was looked at.
        seconds_spent_s: how long the tuning has held up the run.
    """

    plans: tuple[LoaderPlan, ...]
    cpus: CpuBudget | None
    seconds_spent_s: float

    def __str__(self) -> str:
        if not self.plans:
            return "DataLoaderTuner: no loader was looked at"
        head = f"DataLoaderTuner: {text.seconds(self.seconds_spent_s)} of tuning; CPUs: {self.cpus}"
        return "\n".join([head, *(str(plan) for plan in self.plans)])


def trials_table(plan: LoaderPlan) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The trials as columns and rows of text."""
    rows: list[tuple[str, ...]] = []
    for trial in plan.trials:
        tried = trial.samples_per_s is not None
        rows.append(
            (
                str(LoaderSettings.from_dict(trial.settings)),
                text.number(trial.samples_per_s) if tried else "-",
                f"{text.number(trial.low)} to {text.number(trial.high)}" if tried else "-",
                text.mebibytes(trial.rss_mib) if tried else "-",
                trial.verdict,
            )
        )
    return ("setting", "samples/s", "interval", "memory", "verdict"), rows
