"""What the demo shows while it runs: bars in a terminal, a line now and then where there is none."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from lightning_speedups.demo.compare import accuracy
from lightning_speedups.demo.measures import EpochPoint, RunResult
from lightning_speedups.reporting import text
from lightning_speedups.reporting.terminal import WIDTH

_LINES_A_RUN = 8
_BAR = 22


class Watch:
    """One bar for each piece of work, with a few words beside it.

    Args:
        console: where to show it; bars only where it is a terminal.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._console.width = min(self._console.width, WIDTH)
        self._bars = Progress(
            TextColumn("{task.description}", style="bold"),
            BarColumn(_BAR),
            TextColumn("{task.fields[words]}"),
            TimeElapsedColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task = TaskID(0)
        self._name = ""
        self._epochs_told = 0

    def __enter__(self) -> Watch:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def begin(self, name: str, total: int, words: str) -> None:
        """Start a piece of work of ``total`` parts."""
        self._name, self._epochs_told = name, 0
        self._task = self._bars.add_task(f"{name:<16}", total=total, words=words)
        self._line(words)

    def images(self, done: int) -> None:
        """So many images are written."""
        self._bars.update(self._task, completed=done, words=f"{text.count(done)} images")

    def epochs(self, done: float, points: list[EpochPoint], planned: int) -> None:
        """So many epochs are done, with these points."""
        words = f"epoch {min(int(done) + 1, planned)}/{planned}"
        if points:
            words += f", accuracy {accuracy(points[-1].val_acc)}"
        self._bars.update(self._task, completed=done, words=words)
        if len(points) > self._epochs_told and len(points) % max(planned // _LINES_A_RUN, 1) == 0:
            self._epochs_told = len(points)
            last = points[-1]
            self._line(f"epoch {len(points)}/{planned}, accuracy {accuracy(last.val_acc)}, {text.seconds(last.end_s)}")

    def finished(self, result: RunResult) -> None:
        """The run is over; the bar of one that stopped early stays where it stopped."""
        early = result.epochs_run < result.epochs_planned
        words = f"{'stopped after' if early else 'all'} {result.epochs_run} epochs, {text.seconds(result.wall_s)}"
        self._bars.update(self._task, completed=result.epochs_run, words=words)
        self._bars.stop_task(self._task)
        self._line(words)

    def _line(self, words: str) -> None:
        if not self._console.is_terminal:
            self._console.print(f"{self._name}: {words}")
