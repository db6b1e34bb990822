"""The two runs side by side: one row a measure, with a verdict, and whose doing the difference is."""

from __future__ import annotations

from dataclasses import dataclass

from lightning_speedups.demo.measures import RunResult
from lightning_speedups.demo.pack import PARTS, Part
from lightning_speedups.measuring.stats import ratio_interval
from lightning_speedups.reporting import text
from lightning_speedups.reporting.records import Record

# Single runs tell nothing finer, whatever their epochs look like.
LEAST_NOISE_PCT = 5.0
NOT_REACHED = "not reached"
# On two cores a fifth of a core: less is what an idle desktop does.
_BUSY_PCT = 10.0


@dataclass(frozen=True)
class Row(Record):
    """One measure of both runs. ``better`` is True or False where the pack's is better or worse, None where neither."""

    measure: str
    stock: str
    pack: str
    verdict: str
    better: bool | None


@dataclass(frozen=True)
class Gain(Record):
    """The seconds of wall time that one cause took off the run (below 0: added), and their share of the whole gain.

    ``share_pct`` is None where the pack's run was not faster beyond the noise, so that there is no gain to share.
    """

    cause: str
    gain_s: float
    share_pct: float | None
    how: str


@dataclass(frozen=True)
class Comparison(Record):
    """What the demo found. Times and rates less than ``noise_pct`` apart were called no difference.

    ``warning`` says what makes the figures doubtful; empty where nothing was seen to.
    """

    headline: str
    warning: str
    noise_pct: float
    rows: tuple[Row, ...]
    gains: tuple[Gain, ...]
    stock: RunResult
    pack: RunResult


def compare(stock: RunResult, pack: RunResult, parts: tuple[Part, ...] = PARTS) -> Comparison:
    """The comparison of a stock run with a pack's run of the same program and seed."""
    judge = _Judge(noise_pct(stock, pack))
    rows = _rows(stock, pack, judge)
    gains = _gains(stock, pack, parts, faster=rows[0].better is True)
    return Comparison(_headline(stock, pack, rows), _warning(stock, pack), judge.noise_pct, rows, gains, stock, pack)


def _warning(stock: RunResult, pack: RunResult) -> str:
    if max(stock.others_cpu_pct, pack.others_cpu_pct) < _BUSY_PCT:
        return ""
    return (
        f"Other programs used {stock.others_cpu_pct:.0f} % of this machine's CPUs during the stock run and"
        f" {pack.others_cpu_pct:.0f} % during the pack's: do not trust the times, run it again on a quiet machine."
    )


def noise_pct(stock: RunResult, pack: RunResult) -> float:
    """How far apart two times must be to be told from noise: what the machine did to the epochs that both ran.

    Epoch by epoch, the pack's time over the stock run's is a ratio; the interval of its median, relative to that
    median, is how well the two runs' speeds can be compared at all.
    """
    both = min(len(stock.curve), len(pack.curve))
    pace = ratio_interval(zip(stock.epochs_s[:both], pack.epochs_s[:both], strict=True))
    return max(LEAST_NOISE_PCT, 100 * (pace.high / pace.median - 1), 100 * (pace.median / pace.low - 1))


@dataclass(frozen=True)
class _Judge:
    noise_pct: float

    def ratio(self, ratio: float, better: str, worse: str) -> tuple[str, bool | None]:
        """The verdict on a ratio that is above 1 where the pack is better."""
        if max(ratio, 1 / ratio) <= 1 + self.noise_pct / 100:
            return "no difference", None
        return (f"{text.ratio(ratio)} {better}", True) if ratio > 1 else (f"{text.ratio(1 / ratio)} {worse}", False)

    def seconds(self, measure: str, stock_s: float, pack_s: float) -> Row:
        verdict, better = self.ratio(stock_s / pack_s, "faster", "slower")
        return Row(measure, text.seconds(stock_s), text.seconds(pack_s), verdict, better)


def _rows(stock: RunResult, pack: RunResult, judge: _Judge) -> tuple[Row, ...]:
    return (
        judge.seconds("wall time of the fit", stock.wall_s, pack.wall_s),
        _time_to_accuracy(stock, pack, judge),
        _epochs(stock, pack),
        _training_rate(stock, pack, judge),
        judge.seconds("evaluation time, in all", stock.evaluation_s, pack.evaluation_s),
        _accuracy_row("best validation accuracy", stock.best.val_acc, pack.best.val_acc),
        _accuracy_row("test accuracy of the weights left", stock.final_test_acc, pack.final_test_acc),
        _peak_memory(stock, pack),
    )


def _headline(stock: RunResult, pack: RunResult, rows: tuple[Row, ...]) -> str:
    wall, goal = (f"{row.verdict} beyond the noise" if row.better is None else row.verdict for row in rows[:2])
    return (
        f"Wall time {rows[0].stock} with a stock Trainer, {rows[0].pack} with the pack: {wall}."
        f" Time to the stock run's best accuracy: {goal}."
        f" Test accuracy {accuracy(stock.final_test_acc)} and {accuracy(pack.final_test_acc)}."
    )


def _time_to_accuracy(stock: RunResult, pack: RunResult, judge: _Judge) -> Row:
    goal = stock.best.val_acc
    measure = f"time to {accuracy(goal)} (stock's best)"
    pack_s = pack.seconds_to(goal)
    if pack_s is not None:
        return judge.seconds(measure, stock.best.end_s, pack_s)
    return Row(measure, text.seconds(stock.best.end_s), "-", NOT_REACHED, False)


def _epochs(stock: RunResult, pack: RunResult) -> Row:
    def shown(run: RunResult) -> str:
        return f"{run.epochs_run} of {run.epochs_planned}"

    fewer = stock.epochs_run - pack.epochs_run
    verdict = "no difference" if fewer == 0 else f"{abs(fewer)} {'fewer' if fewer > 0 else 'more'}"
    return Row("epochs run", shown(stock), shown(pack), verdict, fewer > 0 if fewer else None)


def _training_rate(stock: RunResult, pack: RunResult, judge: _Judge) -> Row:
    verdict, better = judge.ratio(pack.train_samples_per_s / stock.train_samples_per_s, "faster", "slower")
    before, after = f"{stock.train_samples_per_s:,.0f}/s", f"{pack.train_samples_per_s:,.0f}/s"
    return Row("training images per second", before, after, verdict, better)


def _accuracy_row(measure: str, stock: float, pack: float) -> Row:
    points = 100 * (pack - stock)
    if round(points, 2) == 0:
        return Row(measure, accuracy(stock), accuracy(pack), "no difference", None)
    verdict = f"{abs(points):.2f} points {'higher' if points > 0 else 'lower'}"
    return Row(measure, accuracy(stock), accuracy(pack), verdict, points > 0)


def _peak_memory(stock: RunResult, pack: RunResult) -> Row:
    # Workers share most of their memory with the process that started them, and RSS counts it for each. Without
    # workers RSS is the steadier of the two: it does not change when another program loads the same libraries.
    kind, stock_mib, pack_mib = "RSS", stock.peak_rss_mib, pack.peak_rss_mib
    if max(stock.processes, pack.processes) > 1 and None not in (stock.peak_uss_mib, pack.peak_uss_mib):
        kind, stock_mib, pack_mib = "USS", stock.peak_uss_mib, pack.peak_uss_mib
    measure = f"peak memory ({kind})"
    if stock_mib is None or pack_mib is None:
        return Row(measure, text.NOT_MEASURED, text.NOT_MEASURED, "not measured", None)
    verdict, better = _Judge(LEAST_NOISE_PCT).ratio(stock_mib / pack_mib, "less", "more")
    return Row(measure, text.mebibytes(stock_mib), text.mebibytes(pack_mib), verdict, better)


def accuracy(value: float) -> str:
    """A share of images as text: ``98.61 %``."""
    return f"{100 * value:.2f} %"


def _gains(stock: RunResult, pack: RunResult, parts: tuple[Part, ...], *, faster: bool) -> tuple[Gain, ...]:
    whole_s = stock.wall_s - pack.wall_s

    def gain(cause: str, seconds: float, how: str) -> Gain:
        return Gain(cause, seconds, 100 * seconds / whole_s if faster else None, how)

    gains = []
    for part in parts:
        share = part.share(stock, pack)
        gains.append(gain(part.name, share.seconds, share.how))
    rest_s = whole_s - sum(found.gain_s for found in gains)
    return (*gains, gain("the rest", rest_s, "no callback's doing: noise, and the pack's own cost"))
