"""What is known of each loop, filled while it runs and read by the report. Plain values only."""

from __future__ import annotations

from dataclasses import dataclass, field

from lightning_speedups.evaluation.report import EvaluationIssue, EvaluationReport, Kind
from lightning_speedups.evaluation.settings import LOOPS, Loop, Mode

_LEAST_STRICT: tuple[Mode, ...] = ("grad", "no_grad", "inference_mode")


@dataclass
class _Entry:
    expected: Mode = "no_grad"
    reason: str = ""
    seen: Mode | None = None
    batch_size: int = 0
    issues: dict[tuple[Kind, str], EvaluationIssue] = field(default_factory=dict)


class Ledger:
    """One entry for each loop: the last time that it ran with this module. Training has one for its issues."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self.bytes_per_sample: float | None = None

    def begin(self, loop: Loop) -> None:
        """The loop is about to run anew."""
        self._entries[loop] = _Entry()

    def forget(self, loop: str) -> None:
        """As if it had never run."""
        self._entries.pop(loop, None)

    def ran(self, loop: Loop, mode: Mode, batch_size: int | None) -> None:
        """A batch of the loop ran under ``mode``; the least strict one that was seen counts."""
        entry = self._entries[loop]
        if entry.seen is None or _LEAST_STRICT.index(mode) < _LEAST_STRICT.index(entry.seen):
            entry.seen = mode
        entry.batch_size = max(entry.batch_size, batch_size or 0)

    def mode(self, loop: Loop) -> tuple[Mode, str] | None:
        """The mode that was on, and why; None where no batch ran."""
        entry = self._entries.get(loop)
        if entry is None or entry.seen is None:
            return None
        if entry.seen == entry.expected:
            return entry.seen, entry.reason
        return entry.seen, f"set by the program while the loop ran; {entry.expected} was on before ({entry.reason})"

    def because(self, loop: Loop, expected: Mode, reason: str) -> None:
        """The mode that the loop is to run in, and why."""
        self._entries[loop].expected, self._entries[loop].reason = expected, reason

    def add(self, loop: str, issue: EvaluationIssue) -> None:
        """Note an issue, once."""
        self._entries.setdefault(loop, _Entry()).issues.setdefault((issue.kind, issue.where), issue)

    def report(self) -> EvaluationReport:
        """All of it."""
        told = {loop: known for loop in LOOPS if (known := self.mode(loop)) is not None}
        issues: dict[tuple[Kind, str], EvaluationIssue] = {}
        for entry in self._entries.values():
            for key, issue in entry.issues.items():
                issues.setdefault(key, issue)
        sizes = {str(loop): size for loop in told if (size := self._entries[loop].batch_size)}
        avoided = None
        if self.bytes_per_sample is not None and sizes:
            avoided = round(self.bytes_per_sample * max(sizes.values()))
        return EvaluationReport(
            modes={loop: mode for loop, (mode, _) in told.items()},
            reasons={loop: reason for loop, (_, reason) in told.items()},
            issues=tuple(issues.values()),
            graph_bytes_avoided=avoided,
            eval_batch_sizes=sizes,
        )
