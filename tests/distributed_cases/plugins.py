"""Suite 3: every plugin of the registry on two ranks."""

from __future__ import annotations

import functools
from typing import Any

import torch.distributed as dist
from torch.utils.data import DataLoader

from tests.distributed import ddp_trainer, distributed_case, on_every_rank
from tests.helpers import namespace
from tests.plugins import REGISTRY, Plugin
from tests.shared.program import BATCH_SIZE, BATCHES, NoisyRows, Program, as_bytes, improving, stalling

pl = namespace()


def fit(plugin: Plugin | None, made: Any, curve: Any, **settings: Any) -> tuple[Any, Any]:
    """A fit of the common program on all ranks; gives back the Trainer and the module."""
    pl.seed_everything(5, verbose=False)
    train, val = (DataLoader(NoisyRows([], n), batch_size=BATCH_SIZE) for n in (2 * BATCHES * BATCH_SIZE, 16))
    module = Program(curve)
    trainer = ddp_trainer(**{"max_epochs": 5, **settings, **(plugin.attach(made) if plugin else {})})
    trainer.fit(module, train, val)
    return trainer, module


def same_decision_and_weights_on_both_ranks(plugin: Plugin, curve: Any) -> None:
    made = plugin.make()
    trainer, module = fit(plugin, made, curve)

    told = {name: getattr(made.report, name) for name in plugin.reports_alike}
    first, second = on_every_rank((trainer.global_step, trainer.current_epoch, told, as_bytes(module.state_dict())))

    assert first == second


def same_weights_as_without_it(plugin: Plugin, curve: Any) -> None:
    trainer, module = fit(plugin, plugin.make(), curve)
    _, alone = fit(None, None, curve, max_epochs=trainer.current_epoch)

    assert as_bytes(module.weights_at_train_end) == as_bytes(alone.weights_at_train_end)
    if "end_weights" not in plugin.changes:
        assert as_bytes(module.state_dict()) == as_bytes(alone.state_dict())


def apart(step: int) -> float:
    """A metric on which the ranks differ: rank 0 gets better for ever, rank 1 does not."""
    return improving(step) if dist.get_rank() == 0 else stalling(step)


_CASES = (
    (same_decision_and_weights_on_both_ranks, improving),
    (same_decision_and_weights_on_both_ranks, stalling),
    (same_decision_and_weights_on_both_ranks, apart),
    (same_weights_as_without_it, improving),
    (same_weights_as_without_it, stalling),
)
for _plugin in REGISTRY:
    for _check, _curve in _CASES:
        distributed_case(
            functools.partial(_check, _plugin, _curve),
            name=f"plugins.{_check.__name__}-{_plugin.name}-{_curve.__name__}",
        )
