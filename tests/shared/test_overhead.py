"""Suite 7: the wall time of the plugin's own hooks, summed over a fit, stays within its share."""

from __future__ import annotations

import time
from typing import Any

from tests.helpers import loader, namespace, quiet_trainer
from tests.plugins import Plugin, each_plugin
from tests.shared.program import ScriptedRun

pl = namespace()
STEP_S = 0.02
ATTEMPTS = 3
IMPROVING = tuple(1 / (1 + check) for check in range(20))


class SlowSteps(ScriptedRun):
    """Steps that compute for a known time: where other programs hold it up, they hold up the hooks alike."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        start = time.thread_time()
        while time.thread_time() - start < STEP_S:
            pass
        return super().training_step(batch, batch_idx)


class OwnTime:
    """Sums the wall time spent inside an object's hooks; a hook called by another hook counts once."""

    def __init__(self, made: Any) -> None:
        self.seconds = 0.0
        self.depth = 0
        for name in dir(pl.Callback):
            hook = getattr(made, name)
            if not name.startswith("_") and callable(hook):
                setattr(made, name, self.timed(hook))

    def timed(self, hook: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.depth += 1
            start = time.perf_counter()
            try:
                return hook(*args, **kwargs)
            finally:
                self.depth -= 1
                if self.depth == 0:
                    self.seconds += time.perf_counter() - start

        return call


def share_pct(made: Any, epochs: int = 2, steps: int = 40) -> float:
    """The share of a fit's wall time that the object's own hooks take."""
    own = OwnTime(made)
    trainer = quiet_trainer(max_epochs=epochs, callbacks=[made])
    data = loader(n=4 * steps), loader()
    start = time.perf_counter()
    trainer.fit(SlowSteps(val=IMPROVING), *data)
    return 100 * own.seconds / (time.perf_counter() - start)


@each_plugin(kind="callback")
def test_the_hooks_take_no_more_than_their_share(plugin: Plugin) -> None:
    """Other programs on the machine can only add to the figure, so the least of a few fits is the plugin's own."""
    shares: list[float] = []
    while len(shares) < ATTEMPTS and min(shares, default=float("inf")) > plugin.share_limit_pct:
        shares.append(share_pct(plugin.make()))

    assert min(shares) <= plugin.share_limit_pct, f"shares of the wall time in per cent: {shares}"


def test_a_hook_that_is_slow_once_is_noticed() -> None:
    class SlowOnce(pl.Callback):  # type: ignore[misc]
        def on_train_end(self, *args: Any) -> None:
            time.sleep(0.1)

    assert share_pct(SlowOnce(), epochs=1) > 1.0
