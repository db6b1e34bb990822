"""EV-04 and EV-06 of the public reports: compiled modules, and flags of train and eval mode. Each with its kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import lightning_speedups as ls
from tests.evaluation.modules import issues
from tests.helpers import ScriptedModule, loader, quiet_trainer


class Squared(nn.Linear):
    """A module of the program's own: the compiler passes over torch's."""

    def __init__(self) -> None:
        super().__init__(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).square()


class Compiled(ScriptedModule):
    """Counts the graphs that the compiler is asked for; ``how`` says what is compiled."""

    def __init__(self, how: str = "attribute") -> None:
        super().__init__()
        self.graphs: list[Any] = []
        self.f: Callable[[torch.Tensor], torch.Tensor] = self._score
        if how == "attribute":
            self.f = torch.compile(lambda x: self.linear(x).square(), backend=self.backend)
        elif how == "submodule":
            self.linear = torch.compile(self.linear, backend=self.backend)
        elif how == "in_place":
            self.linear = Squared()
            self.linear.compile(backend=self.backend)
        elif how == "method":
            self.f = torch.compile(self._score, backend=self.backend)
        elif how == "list":
            self.parts = [torch.compile(self._score, backend=self.backend)]
            self.f = lambda x: self.parts[0](x)
        elif how == "late":
            self.f = self._compiled_late

    def _score(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).square()

    def _compiled_late(self, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "late"):
            self.late = torch.compile(self._score, backend=self.backend)
        return self.late(x)

    def backend(self, graph: Any, example_inputs: Any) -> Any:
        self.graphs.append(None)
        return graph.forward

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return self.f(batch[0]).mean()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.f(batch[0])


class TestCompiledModules:
    """EV-04: inference_mode would compile one more graph, so every evaluation runs under no_grad."""

    @pytest.mark.parametrize("how", ["attribute", "submodule", "in_place", "method", "list", "late"])
    def test_no_third_graph_is_compiled(self, how: str) -> None:
        torch._dynamo.reset()
        module, callback = Compiled(how), ls.NoGradEvaluation()
        trainer = quiet_trainer(max_epochs=2, callbacks=[callback])
        trainer.fit(module, loader(16), loader(16))
        after_fit = len(module.graphs)
        trainer.validate(module, loader(16), verbose=False)
        assert (after_fit, len(module.graphs)) == (2, 2)
        assert callback.report.modes == {"fit_validation": "no_grad", "validate": "no_grad"}
        assert "compiled module found" in callback.report.reasons["validate"]
        assert callback.report.graph_bytes_avoided is None

    def test_stock_compiles_a_third(self) -> None:
        torch._dynamo.reset()
        module, trainer = Compiled(), quiet_trainer(max_epochs=2)
        trainer.fit(module, loader(16), loader(16))
        trainer.validate(module, loader(16), verbose=False)
        assert len(module.graphs) == 3

    def test_a_whole_module_that_was_compiled(self) -> None:
        torch._dynamo.reset()
        module, callback = Compiled("nothing"), ls.NoGradEvaluation()
        trainer = quiet_trainer(max_epochs=1, callbacks=[callback])
        trainer.fit(torch.compile(module, backend=module.backend), loader(16), loader(16))
        compiled = len(module.graphs)
        trainer.validate(torch.compile(module, backend=module.backend), loader(16), verbose=False)
        assert len(module.graphs) == compiled > 0
        assert callback.report.modes["validate"] == "no_grad"

    def test_it_is_never_put_under_inference_mode_inside_fit(self) -> None:
        torch._dynamo.reset()
        module = Compiled()
        callback = ls.NoGradEvaluation(mode={"fit_validation": "inference_mode"})
        quiet_trainer(max_epochs=1, callbacks=[callback]).fit(module, loader(16), loader(16))
        assert callback.report.modes == {"fit_validation": "no_grad"}
        assert "would compile one more graph" in callback.report.reasons["fit_validation"]
        assert len(module.graphs) == 2


class Normed(ScriptedModule):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop = nn.BatchNorm1d(8), nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.drop(self.norm(x)))

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self(batch[0])


def flags_of(module: nn.Module) -> dict[str, bool]:
    return {name: part.training for name, part in module.named_modules()}


class TestTrainAndEvalFlags:
    """EV-06: a model left in eval mode is warned of, a part in train mode named; no flag is ever set."""

    @pytest.mark.parametrize("what", ["whole", "all_parts"])
    def test_a_model_in_eval_mode_throughout_training(self, what: str, warned: Callable[[], str]) -> None:
        module, callback = Normed(), ls.NoGradEvaluation()
        for part in [module] if what == "whole" else list(module.children()):
            part.eval()
        before = flags_of(module)
        quiet_trainer(max_epochs=2, callbacks=[callback]).fit(module, loader(), loader())
        assert warned().count("the whole model is in eval mode during training") == 1
        assert issues(callback, "train_mode") == ["Normed"]
        assert flags_of(module) == before

    @pytest.mark.parametrize("frozen", [["norm"], ["norm", "linear"], []])
    def test_frozen_parts_are_no_finding_and_stay_frozen(self, frozen: list[str]) -> None:
        module, callback = Normed(), ls.NoGradEvaluation()
        for name in frozen:
            getattr(module, name).eval()
        before = flags_of(module)
        quiet_trainer(max_epochs=2, callbacks=[callback]).fit(module, loader(), loader())
        assert callback.report.issues == ()
        assert flags_of(module) == before

    def test_a_model_that_a_hook_left_in_eval_mode(self, warned: Callable[[], str]) -> None:
        class Samples(Normed):
            def on_train_epoch_end(self) -> None:
                self.eval()

        quiet_trainer(max_epochs=3, callbacks=[ls.NoGradEvaluation()]).fit(Samples(), loader(), loader())
        assert warned().count("in eval mode during training (.eval() was called in a hook)") == 1

    def test_a_hook_that_sets_train_mode_in_time_is_no_finding(self) -> None:
        class Thaws(Normed):
            def on_train_start(self) -> None:
                self.train()

        module, callback = Thaws(), ls.NoGradEvaluation()
        module.eval()
        quiet_trainer(max_epochs=1, callbacks=[callback]).fit(module, loader(), loader())
        assert callback.report.issues == ()

    @pytest.mark.parametrize("hook", ["on_validation_start", "on_validation_epoch_start"])
    def test_a_part_in_train_mode_during_evaluation(self, hook: str, warned: Callable[[], str]) -> None:
        module, callback = Normed(), ls.NoGradEvaluation()
        setattr(module, hook, lambda: module.drop.train())
        quiet_trainer(max_epochs=1, callbacks=[callback]).fit(module, loader(), loader())
        assert issues(callback, "train_mode") == ["drop"]
        assert "in train mode during validation inside fit: drop" in warned()

    def test_a_step_that_flips_and_flips_back_is_found_in_its_source(self) -> None:
        class MonteCarlo(Normed):
            def test_step(self, batch: Any, batch_idx: int) -> None:
                self.drop.train()
                self(batch[0])
                self.drop.eval()

        callback = ls.NoGradEvaluation()
        quiet_trainer(callbacks=[callback]).test(MonteCarlo(), loader(), verbose=False)
        assert [where.split(" (")[0] for where in issues(callback, "train_mode")] == ["MonteCarlo.test_step"]

    def test_a_hook_that_thaws_what_was_frozen_is_named(self, warned: Callable[[], str]) -> None:
        class Thaws(Normed):
            def on_validation_model_train(self) -> None:
                self.train()

        module, callback = Thaws(), ls.NoGradEvaluation()
        module.norm.eval()
        quiet_trainer(max_epochs=1, callbacks=[callback]).fit(module, loader(), loader())
        assert issues(callback, "train_mode") == ["norm"]
        assert "norm is in train mode after validation inside fit and was not before" in warned()
        assert "on_validation_model_train is overridden" in warned()

    def test_a_forgotten_switch_back_is_named(self) -> None:
        class Forgets(Normed):
            def on_validation_model_train(self) -> None:
                pass

        module, callback = Forgets(), ls.NoGradEvaluation()
        quiet_trainer(max_epochs=1, callbacks=[callback], val_check_interval=1).fit(module, loader(), loader())
        assert any("Forgets" in where and "drop" in where for where in issues(callback, "train_mode"))
