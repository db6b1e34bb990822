"""NoGradEvaluation in the real Trainer: graphs, gradients, outputs, memory, the report, bad arguments."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import lightning_speedups as ls
from lightning_speedups.evaluation.report import EvaluationIssue, EvaluationReport
from tests.evaluation.modules import AsAttribute, Force, issues
from tests.helpers import ScriptedModule, loader, namespace, quiet_trainer

pl = namespace()


def fit(module: Any, callback: Any, **trainer: Any) -> Any:
    made = quiet_trainer(**{"max_epochs": 1, "callbacks": [callback], **trainer})
    made.fit(module, loader(), loader())
    return made


class TestGraphs:
    def test_what_a_step_returns_with_its_graph_is_named(self) -> None:
        class Returns(Force):
            def test_step(self, batch: Any, batch_idx: int) -> Any:
                with torch.enable_grad():
                    return {"energy": self(batch[0]), "target": batch[0], "more": [self(batch[0]).detach()]}

        callback = ls.NoGradEvaluation()
        quiet_trainer(callbacks=[callback]).test(Returns(), loader(), verbose=False)
        assert issues(callback, "graph_kept") == ["test_step()['energy']"]

    @pytest.mark.parametrize("detached", [True, False])
    def test_what_the_module_gathers_with_its_graph_is_named(self, detached: bool) -> None:
        class Gathers(Force):
            def __init__(self) -> None:
                super().__init__()
                self.energies: list[torch.Tensor] = []

            def validation_step(self, batch: Any, batch_idx: int) -> None:
                with torch.enable_grad():
                    energy = self(batch[0])
                self.energies.append(energy.detach() if detached else energy)

            def on_validation_epoch_end(self) -> None:
                self.energies.clear()

        callback = ls.NoGradEvaluation()
        fit(Gathers(), callback)
        assert issues(callback, "graph_kept") == ([] if detached else ["Gathers.energies"])

    def test_a_graph_that_training_stored_is_not_evaluations_doing(self) -> None:
        class Stores(Force):
            def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
                self.last = super().training_step(batch, batch_idx)
                return self.last

        callback = ls.NoGradEvaluation()
        fit(Stores(), callback)
        assert issues(callback, "graph_kept") == []

    def test_predictions_lose_their_graph_where_they_are_moved(self) -> None:
        class Predicts(Force):
            def predict_step(self, batch: Any, batch_idx: int) -> Any:
                with torch.enable_grad():
                    return self(batch[0])

        kept = quiet_trainer(callbacks=[ls.NoGradEvaluation()]).predict(Predicts(), loader())
        moved = quiet_trainer(callbacks=[ls.NoGradEvaluation(outputs="cpu")]).predict(Predicts(), loader())
        assert [each.requires_grad for each in (*kept, *moved)] == [True, True, False, False]


class Backward(ScriptedModule):
    """Leaves gradients behind in validation, within an accumulation window."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        with torch.enable_grad():
            self(batch[0]).sum().backward()


class Looks(pl.Callback):  # type: ignore[misc]
    """Notes the gradient of the weight before, in and after validation."""

    def __init__(self) -> None:
        self.seen: dict[str, torch.Tensor | None] = {}

    def _note(self, when: str, module: Any) -> None:
        grad = module.linear.weight.grad
        self.seen[when] = None if grad is None else grad.clone()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        self._note("before", pl_module)

    def on_validation_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, *_: Any) -> None:
        if batch_idx == 0:
            self._note("inside", pl_module)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self._note("after", pl_module)


def test_advice_about_autograd_grad_is_given_to_those_who_call_it(said: Callable[[], str]) -> None:
    class Adapts(Force):
        def forces(self, x: torch.Tensor) -> torch.Tensor:
            with torch.enable_grad():
                self.linear(x).sum().backward(inputs=[self.linear.bias])
            return x

    quiet_trainer(callbacks=[ls.NoGradEvaluation()]).test(Adapts(), loader(), verbose=False)
    assert "test_step may need gradients: .backward() in Adapts.forces" in said()
    assert "create_graph" not in said()


class TestGradients:
    def test_a_step_that_changes_them_is_named(self, warned: Callable[[], str]) -> None:
        callback = ls.NoGradEvaluation()
        quiet_trainer(callbacks=[callback]).validate(Backward(), loader(), verbose=False)
        assert issues(callback, "grads_changed") == ["linear.weight, linear.bias"]
        assert "isolate_grads=True puts them back" in warned()

    def test_isolated_they_are_away_inside_and_back_afterwards(self) -> None:
        looks, callback = Looks(), ls.NoGradEvaluation(isolate_grads=True)
        trainer = quiet_trainer(max_epochs=1, callbacks=[callback, looks], accumulate_grad_batches=4)
        trainer.fit_loop.epoch_loop._should_accumulate = lambda: True
        trainer.fit(Backward(), loader(n=12), loader())
        before, inside, after = (looks.seen[when] for when in ("before", "inside", "after"))
        assert inside is None
        assert before is not None
        assert torch.equal(before, after)
        assert issues(callback, "grads_changed") == ["linear.weight, linear.bias"]

    def test_an_open_window_keeps_its_sum(self) -> None:
        """Validation after each batch of one window: the step at its end is that of a run without validation."""

        def weights(module: Any, callback: Any, **trainer: Any) -> torch.Tensor:
            torch.manual_seed(3)
            made = quiet_trainer(max_epochs=1, callbacks=[callback], accumulate_grad_batches=3, **trainer)
            module.load_state_dict({name: torch.ones_like(value) for name, value in module.state_dict().items()})
            data = DataLoader(TensorDataset(torch.linspace(-1, 1, 96).reshape(12, 8)), batch_size=4)
            made.fit(module, data, data)
            return module.linear.weight.detach().clone()

        alone = weights(ScriptedModule(), pl.Callback(), limit_val_batches=0)
        disturbed = weights(Backward(), pl.Callback(), val_check_interval=1)
        isolated = weights(Backward(), ls.NoGradEvaluation(isolate_grads=True), val_check_interval=1)
        freed = weights(ScriptedModule(), ls.NoGradEvaluation(free_grads=True), val_check_interval=1)
        assert not torch.equal(disturbed, alone)
        assert torch.equal(isolated, alone)
        assert torch.equal(freed, alone)

    def test_they_are_freed_where_the_module_keeps_them(self, said: Callable[[], str]) -> None:
        class Keeps(ScriptedModule):
            def on_validation_model_zero_grad(self) -> None:
                pass

        looks = Looks()
        quiet_trainer(max_epochs=1, callbacks=[looks]).fit(Keeps(), loader(), loader())
        assert looks.seen["inside"] is not None
        freed = Looks()
        quiet_trainer(max_epochs=1, callbacks=[ls.NoGradEvaluation(free_grads=True), freed]).fit(
            Keeps(), loader(), loader()
        )
        assert freed.seen["inside"] is None
        assert "freed 36 bytes of gradients before validation inside fit" in said()

    def test_the_programs_own_steps_keep_theirs(self) -> None:
        class Manual(ScriptedModule):
            def __init__(self) -> None:
                super().__init__()
                self.automatic_optimization = False

            def training_step(self, batch: Any, batch_idx: int) -> None:
                self.manual_backward(self(batch[0]).square().mean())

            def on_validation_model_zero_grad(self) -> None:
                pass

        looks = Looks()
        callbacks = [ls.NoGradEvaluation(free_grads=True), looks]
        quiet_trainer(max_epochs=1, callbacks=callbacks).fit(Manual(), loader(), loader())
        assert looks.seen["inside"] is not None

    def test_they_are_back_after_an_error_inside_evaluation(self) -> None:
        class Breaks(ScriptedModule):
            def on_validation_model_zero_grad(self) -> None:
                pass

            def validation_step(self, batch: Any, batch_idx: int) -> None:
                raise ValueError("on purpose")

        module = Breaks()
        with pytest.raises(ValueError, match="on purpose"):
            fit(module, ls.NoGradEvaluation(isolate_grads=True))
        assert module.linear.weight.grad is not None


class TestTheReport:
    def test_it_is_data_and_text(self) -> None:
        callback = ls.NoGradEvaluation()
        fit(Force(), callback, num_sanity_val_steps=1)
        told = json.loads(json.dumps(callback.report.to_dict()))
        assert set(told) == {
            *("schema_version", "modes", "reasons", "issues", "graph_bytes_avoided", "eval_batch_sizes"),
        }
        assert told["modes"] == {"fit_validation": "no_grad", "sanity": "no_grad"}
        assert told["issues"][0]["kind"] == "needs_gradients"
        assert "validation inside fit: no_grad" in str(callback.report)

    def test_states_of_one_metric_share_a_line(self) -> None:
        said = "was created under inference_mode; cloned"
        issues = [EvaluationIssue("inference_tensor", f"acc.{name}", f"acc.{name} {said}") for name in "abcdef"]
        issues.append(EvaluationIssue("train_mode", "drop", "dropout is on"))
        lines = str(EvaluationReport({"test": "no_grad"}, {"test": "asked"}, tuple(issues), None, {})).splitlines()
        assert lines[-2:] == [
            "  inference_tensor: acc.a, acc.b, acc.c, acc.d and 2 more were created under inference_mode; cloned",
            "  train_mode: dropout is on",
        ]

    def test_it_is_written(self, tmp_path: Path) -> None:
        callback = ls.NoGradEvaluation(report_dir=tmp_path)
        trainer = fit(AsAttribute(), callback)
        assert "Under no_grad: validation inside fit." in (tmp_path / "report.html").read_text()
        trainer.test(AsAttribute(), loader(), verbose=False)
        told = json.loads((tmp_path / "no_grad_evaluation.json").read_text())
        assert told["modes"] == {"test": "inference_mode"}

    def test_loops_of_the_same_module_come_together_and_another_module_begins_anew(self) -> None:
        module, callback = AsAttribute(), ls.NoGradEvaluation()
        trainer = quiet_trainer(max_epochs=1, callbacks=[callback])
        trainer.validate(module, loader(), verbose=False)
        trainer.fit(module, loader(), loader())
        assert set(callback.report.modes) == {"fit_validation", "validate"}
        assert issues(callback, "inference_tensor") == ["AsAttribute.scale"]
        trainer.predict(AsAttribute(), loader())
        assert set(callback.report.modes) == {"predict"}

    def test_it_goes_with_a_pickle(self) -> None:
        callback = ls.NoGradEvaluation()
        fit(AsAttribute(), callback)
        again = pickle.loads(pickle.dumps(callback))
        assert again.report == callback.report


class TestData:
    def test_several_loaders(self) -> None:
        callback = ls.NoGradEvaluation()
        trainer = quiet_trainer(max_epochs=1, callbacks=[callback])
        trainer.fit(AsAttribute(), loader(), [loader(), loader(16, batch_size=8)])
        assert callback.report.eval_batch_sizes == {"fit_validation": 8}

    def test_a_stream_of_batches_that_are_no_tensors(self) -> None:
        class Words(IterableDataset[str]):
            def __iter__(self) -> Any:
                return iter(["a", "b"])

        class Reads(ScriptedModule):
            def test_step(self, batch: Any, batch_idx: int) -> list[str]:
                return list(batch)

        callback = ls.NoGradEvaluation(outputs="cpu")
        data = DataLoader(Words(), batch_size=None)
        quiet_trainer(callbacks=[callback]).test(Reads(), data, verbose=False)
        assert callback.report.modes == {"test": "inference_mode"}
        assert callback.report.eval_batch_sizes == {}


class TestFailingClosed:
    @pytest.mark.filterwarnings("ignore:.*its own check.*")
    def test_a_check_that_breaks_is_told_once_and_evaluation_goes_on(self, warned: Callable[[], str]) -> None:
        class Unreadable:
            def __init__(self, *args: Any) -> None:
                pass

            @property
            def __dict__(self) -> Any:  # type: ignore[override]
                raise LookupError("not for you")

        module, callback = AsAttribute(), ls.NoGradEvaluation()
        module.odd = Unreadable()
        trainer = quiet_trainer(callbacks=[callback])
        trainer.validate(module, loader(), verbose=False)
        assert warned().count("its own check") == 1
        assert "LookupError: not for you" in warned()
        assert trainer.validate_loop.inference_mode is True

    def test_stock_fits_break_no_check(self, warned: Callable[[], str]) -> None:
        fit(Force(), ls.NoGradEvaluation(), num_sanity_val_steps=1)
        assert "its own check" not in warned()


WRONG = [
    ({"mode": "no_grad"}, r"'auto', or a dict from a loop to a mode such as \{'test': 'no_grad'\}, got 'no_grad'"),
    ({"mode": None}, "got None"),
    ({"mode": {"val": "no_grad"}}, "loops out of fit_validation, sanity, validate, test, predict, got 'val'"),
    ({"mode": {"test": "grad"}}, r"one of auto, no_grad, inference_mode, got 'grad'\. To have gradients"),
    ({"outputs": "gpu"}, "one of keep, cpu, drop, got 'gpu'"),
    ({"free_grads": "yes"}, "`free_grads` must be True or False, got 'yes'"),
    ({"isolate_grads": None}, "`isolate_grads` must be True or False, got None"),
    ({"eval_batch_size": "auto"}, "arrives with the batch-size planner"),
    ({"eval_batch_size": 0}, "from 1 on, or None to keep the loaders' own, got 0"),
    ({"eval_batch_size": 2.5}, r"got 2\.5"),
    ({"eval_batch_size": True}, "got True"),
    ({"report_dir": 3}, "a path or None, got 3"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG, ids=lambda value: str(value)[:40])
def test_wrong_arguments_are_refused_at_construction(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(pl.utilities.exceptions.MisconfigurationException, match=message):
        ls.NoGradEvaluation(**arguments)
