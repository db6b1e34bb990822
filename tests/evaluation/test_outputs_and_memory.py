"""What evaluation keeps: outputs that pin more than they hold, and the graph that is not kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import lightning_speedups as ls
from tests.evaluation.modules import issues
from tests.helpers import ScriptedModule, loader, namespace, quiet_trainer

pl = namespace()


class Views(ScriptedModule):
    """Returns one column of a wide result."""

    def _column(self, batch: Any) -> dict[str, Any]:
        wide = batch[0].repeat(1, 4096)
        return {"column": wide[:, :1], "all": self(batch[0]), "name": "x"}

    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> dict[str, Any]:
        return self._column(batch)

    def test_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        self.gathered.append(self._column(batch))
        return self.gathered[-1]

    def on_test_start(self) -> None:
        self.gathered: list[Any] = []


def held(outputs: list[dict[str, Any]]) -> int:
    return sum(each["column"].untyped_storage().nbytes() for each in outputs)


class TestOutputs:
    ROWS = 16

    def test_kept_views_of_large_tensors_are_named(self, warned: Callable[[], str]) -> None:
        callback = ls.NoGradEvaluation()
        results = quiet_trainer(callbacks=[callback]).predict(Views(), loader(self.ROWS))
        assert held(results) == self.ROWS * 8 * 4096 * 4
        assert issues(callback, "output_storage") == ["predict_step()"]
        assert "keep 2.00 MiB alive" in warned()

    def test_a_test_that_gathers_views_is_named(self) -> None:
        callback = ls.NoGradEvaluation()
        quiet_trainer(callbacks=[callback]).test(Views(), loader(self.ROWS), verbose=False)
        assert issues(callback, "output_storage") == ["test_step()"]

    def test_moved_they_pin_nothing_and_have_the_same_values(self) -> None:
        callback, data = ls.NoGradEvaluation(outputs="cpu"), loader(self.ROWS)
        module = Views()
        moved = quiet_trainer(callbacks=[callback]).predict(module, data)
        kept = quiet_trainer().predict(module, data)
        assert held(moved) == self.ROWS * 4
        assert all(
            torch.equal(a[name], b[name]) for a, b in zip(moved, kept, strict=True) for name in ("column", "all")
        )
        assert [each["name"] for each in moved] == ["x"] * 4
        assert callback.report.issues == ()

    def test_several_loaders(self) -> None:
        callback = ls.NoGradEvaluation(outputs="cpu")
        results = quiet_trainer(callbacks=[callback]).predict(Views(), [loader(self.ROWS), loader(8)])
        assert [held(each) for each in results] == [self.ROWS * 4, 8 * 4]

    def test_what_a_test_gathers_is_small_as_it_comes(self) -> None:
        module = Views()
        quiet_trainer(callbacks=[ls.NoGradEvaluation(outputs="cpu")]).test(module, loader(self.ROWS), verbose=False)
        assert held(module.gathered) == self.ROWS * 4

    def test_dropped_they_are_not_returned(self) -> None:
        trainer = quiet_trainer(callbacks=[ls.NoGradEvaluation(outputs="drop")])
        assert trainer.predict(Views(), loader(self.ROWS)) is None

    @pytest.mark.parametrize("interval", ["batch", "epoch"])
    def test_writers_get_them_all_the_same(self, interval: Any) -> None:
        class Writes(pl.callbacks.BasePredictionWriter):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__(interval)
                self.written: list[Any] = []

            def write_on_batch_end(self, trainer: Any, pl_module: Any, prediction: Any, *args: Any) -> None:
                self.written.append(prediction)

            def write_on_epoch_end(self, trainer: Any, pl_module: Any, predictions: Any, batch_indices: Any) -> None:
                self.written += predictions

        for outputs in ("keep", "cpu", "drop"):
            writer = Writes()
            quiet_trainer(callbacks=[ls.NoGradEvaluation(outputs=outputs), writer]).predict(Views(), loader(self.ROWS))
            assert [each["column"].shape for each in writer.written] == [(4, 1)] * 4


class TestMemory:
    def test_the_graph_of_one_training_forward_is_counted_per_sample(self) -> None:
        class Deep(ScriptedModule):
            def __init__(self) -> None:
                super().__init__()
                self.net = nn.Sequential(nn.Linear(8, 16), nn.Sigmoid(), nn.Linear(16, 1))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.net(x)

        callback = ls.NoGradEvaluation()
        trainer = quiet_trainer(max_epochs=1, callbacks=[callback])
        trainer.fit(Deep(), loader(16, batch_size=4), loader(64, batch_size=32))
        # Saved per sample: the input (8), what the sigmoid gave (16) and the result, which is squared (1).
        assert callback.report.graph_bytes_avoided == 32 * (8 + 16 + 1) * 4
        assert callback.report.eval_batch_sizes == {"fit_validation": 32}

    def test_none_where_no_training_step_ran(self) -> None:
        callback = ls.NoGradEvaluation()
        quiet_trainer(callbacks=[callback]).validate(ScriptedModule(), loader(), verbose=False)
        assert callback.report.graph_bytes_avoided is None

    @pytest.mark.parametrize("hook", ["training_step", "on_train_batch_start", "on_before_zero_grad", "optimizer_step"])
    def test_functional_transforms_run_wherever_the_program_has_them(self, hook: str) -> None:
        """They refuse to run under hooks on saved tensors: there must be none around the program's code."""

        class Transforms(ScriptedModule):
            def slope(self) -> torch.Tensor:
                return torch.func.grad(lambda x: x.square().sum())(torch.ones(4, 8))

        plain = getattr(ScriptedModule, hook)

        def with_transform(self: Any, *args: Any, **kwargs: Any) -> Any:
            self.slope()
            return plain(self, *args, **kwargs)

        setattr(Transforms, hook, with_transform)
        callback = ls.NoGradEvaluation()
        trainer = quiet_trainer(max_epochs=1, callbacks=[callback])
        trainer.fit(Transforms(), loader(), loader())
        assert trainer.global_step == 2
        assert callback.report.graph_bytes_avoided == 4 * (8 + 1) * 4

    def test_the_programs_own_hooks_are_left_alone(self) -> None:
        packed: list[int] = []

        class Packs(ScriptedModule):
            def on_train_batch_start(self, *args: Any) -> None:
                self.hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(1) or t, lambda t: t)
                self.hooks.__enter__()

            def on_train_batch_end(self, *args: Any) -> None:
                self.hooks.__exit__()
                del self.hooks

        quiet_trainer(max_epochs=1, callbacks=[ls.NoGradEvaluation()]).fit(Packs(), loader(), loader())
        with_it = len(packed)
        packed.clear()
        quiet_trainer(max_epochs=1).fit(Packs(), loader(), loader())
        assert with_it == len(packed) > 0
