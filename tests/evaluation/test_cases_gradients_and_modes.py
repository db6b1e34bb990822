"""EV-02 and EV-03 of the public reports: steps that need gradients, and which mode is on. Each with its kind."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torchmetrics import Metric

import lightning_speedups as ls
import tests.evaluation.attacks
from tests.evaluation.modules import AsAttribute, Force, issues
from tests.helpers import ScriptedModule, loader, namespace, quiet_trainer


class Potential(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(8, 1)

    @torch.enable_grad()
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x.requires_grad = True
        self.net(x).square().sum().backward()
        return -x.grad


class InASubmodule(Force):
    """The submodule differentiates, by a decorator and ``backward``."""

    def __init__(self) -> None:
        super().__init__()
        self.potential = Potential()

    def forces(self, x: torch.Tensor) -> torch.Tensor:
        return self.potential(x)


class MadeLate(InASubmodule):
    """The submodule comes in ``configure_model``, after the callbacks' ``setup``."""

    def __init__(self) -> None:
        super().__init__()
        del self.potential
        self.potential = None

    def configure_model(self) -> None:
        if self.potential is None:
            self.potential = Potential()


def residual(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """A function of the program's file, as losses of physics-informed nets are."""
    with torch.set_grad_enabled(True):
        x = x.detach().requires_grad_()
        return torch.autograd.grad(net(x).sum(), x)[0]


class ByAFunction(Force):
    def forces(self, x: torch.Tensor) -> torch.Tensor:
        return residual(self.linear, x)


class ByAJacobian(Force):
    """Under inference_mode this one does not fail: it gives zeros."""

    def forces(self, x: torch.Tensor) -> torch.Tensor:
        from torch.autograd.functional import jacobian

        return jacobian(lambda each: self.linear(each).square().sum(), x)


class AdaptsAtTestTime(Force):
    """Takes optimizer steps in evaluation."""

    def forces(self, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            optimizer = torch.optim.SGD([self.linear.bias], lr=0.1)
            self.linear(x).square().mean().backward(inputs=[self.linear.bias])
            optimizer.step()
            self.linear.bias.grad = None
        return self.linear(x)


class Slope(Metric):
    """A metric that differentiates: torchmetrics calls its ``update``, no line of the program does."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.nets = [net]
        self.add_state("total", torch.tensor(0.0), dist_reduce_fx="sum")

    def update(self, x: torch.Tensor) -> None:
        with torch.enable_grad():
            x = x.clone().requires_grad_()
            self.total += torch.autograd.grad(self.nets[0](x).sum(), x)[0].abs().sum()

    def compute(self) -> torch.Tensor:
        return self.total


class InAMetric(Force):
    def __init__(self) -> None:
        super().__init__()
        self.slope = Slope(self.linear)

    def forces(self, x: torch.Tensor) -> torch.Tensor:
        return self.slope(x)


class ByADottedModule(Force):
    def forces(self, x: torch.Tensor) -> torch.Tensor:
        return tests.evaluation.attacks.slope(self.linear, x)


class ByALocalImport(Force):
    def forces(self, x: torch.Tensor) -> torch.Tensor:
        from tests.evaluation.attacks import slope as steepness

        return steepness(self.linear, x)


class ByALocalRelativeImport(Force):
    def forces(self, x: torch.Tensor) -> torch.Tensor:
        from .attacks import slope as steepness

        return steepness(self.linear, x)


class ByAPrivateObject(Force):
    def __init__(self) -> None:
        super().__init__()
        self._attack = tests.evaluation.attacks.Attack()

    def forces(self, x: torch.Tensor) -> torch.Tensor:
        return self._attack.step(self.linear, x)


class ByATeacherInAList(Force):
    """The teacher is kept out of the module's parameters."""

    def __init__(self) -> None:
        super().__init__()
        self._teachers = [(nn.Sequential(Potential()),)]

    def forces(self, x: torch.Tensor) -> torch.Tensor:
        return self._teachers[0][0](x)


class ByAPartialMethod(Force):
    forces = functools.partialmethod(lambda self, x: residual(self.linear, x))


def from_a_text() -> type[Force]:
    """A class whose source is nowhere."""
    made: dict[str, Any] = {"Base": Force, "torch": torch}
    exec(
        "class Made(Base):\n"
        "    def forces(self, x):\n"
        "        with torch.enable_grad():\n"
        "            x = x.clone().requires_grad_()\n"
        "            return torch.autograd.grad(self.linear(x).sum(), x)[0]\n",
        made,
    )
    return made["Made"]


KINDS = [Force, InASubmodule, MadeLate, ByAFunction, ByAJacobian, AdaptsAtTestTime, InAMetric, from_a_text()]
KINDS += [ByADottedModule, ByALocalImport, ByALocalRelativeImport, ByAPrivateObject, ByATeacherInAList]
KINDS += [ByAPartialMethod]


class OutOfSight(Force):
    """Calls what no reader of the source can find."""

    def forces(self, x: torch.Tensor) -> torch.Tensor:
        return getattr(tests.evaluation.attacks, "slo" + "pe")(self.linear, x)


class AsksAnInferenceTensor(Force):
    """Fails under inference_mode with another message."""

    def forces(self, x: torch.Tensor) -> torch.Tensor:
        assert torch.ones(1)._version == 0
        return x


class TestStepsThatNeedGradients:
    """EV-02: they work in validate, test and predict as they do inside fit, and it is said why."""

    @pytest.mark.parametrize("kind", [OutOfSight, AsksAnInferenceTensor])
    @pytest.mark.parametrize("loop", ["validate", "test", "predict"])
    def test_where_none_was_found_and_the_step_fails_the_cure_is_named(
        self, kind: type[Force], loop: str, warned: Callable[[], str]
    ) -> None:
        trainer = quiet_trainer(callbacks=[ls.NoGradEvaluation()])
        with pytest.raises(RuntimeError, match=r"does not require grad|Inference tensors"):
            getattr(trainer, loop)(kind(), loader())
        assert warned().count(f"mode={{{loop!r}: 'no_grad'}}") == 1

        trainer = quiet_trainer(callbacks=[ls.NoGradEvaluation(mode={loop: "no_grad"})])
        getattr(trainer, loop)(kind(), loader())

    def test_a_callback_made_of_functions_is_read_too(self) -> None:
        def attack(trainer: Any, pl_module: Any, batch: Any, *_: Any) -> None:
            residual(pl_module.linear, batch[0])

        callback = ls.NoGradEvaluation()
        others = [callback, namespace().callbacks.LambdaCallback(on_test_batch_start=attack)]
        quiet_trainer(callbacks=others).test(AsAttribute(), loader(), verbose=False)
        assert callback.report.modes == {"test": "no_grad"}

    @pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
    @pytest.mark.parametrize("loop", ["validate", "test", "predict"])
    def test_they_run_and_find_gradients(self, kind: type[Force], loop: str) -> None:
        module, callback = kind(), ls.NoGradEvaluation()
        arguments = {} if loop == "predict" else {"verbose": False}
        results = getattr(quiet_trainer(callbacks=[callback]), loop)(module, loader(), **arguments)
        found = results[-1] if loop == "predict" else module.found
        assert found.abs().sum() > 0
        assert callback.report.modes == {loop: "no_grad"}
        assert "may need gradients" in callback.report.reasons[loop]
        assert len(issues(callback, "needs_gradients")) >= 1

    @pytest.mark.parametrize("kind", [Force, InASubmodule, ByAFunction])
    def test_stock_fails_there(self, kind: type[Force]) -> None:
        with pytest.raises(RuntimeError, match="does not require grad"):
            quiet_trainer().test(kind(), loader(), verbose=False)

    def test_the_place_is_named_and_the_graph_that_need_not_be_kept(self, said: Callable[[], str]) -> None:
        quiet_trainer(callbacks=[ls.NoGradEvaluation()]).test(Force(), loader(), verbose=False)
        line = Force.forces.__code__.co_firstlineno + 4
        assert f"test_step may need gradients: torch.autograd.grad in Force.forces, modules.py:{line}" in said()
        assert "create_graph=self.training" in said()

    def test_what_source_does_not_show_validation_inside_fit_does(self) -> None:
        class Hidden(Force):
            def forces(self, x: torch.Tensor) -> torch.Tensor:
                differentiate = getattr(torch.autograd, "gra" + "d")
                with getattr(torch, "enable" + "_grad")():
                    x = torch.nn.Parameter(x.clone())
                    return differentiate(self.linear(x).square().sum(), x)[0]

        module, callback = Hidden(), ls.NoGradEvaluation()
        trainer = quiet_trainer(max_epochs=1, callbacks=[callback])
        trainer.fit(module, loader(), loader())
        assert issues(callback, "needs_gradients") == ["validation_step()"]
        trainer.test(module, loader(), verbose=False)
        assert callback.report.modes["test"] == "no_grad"
        assert "ran autograd 2 times" in callback.report.reasons["test"]

    def test_a_mode_can_be_asked_for_by_loop(self) -> None:
        callback = ls.NoGradEvaluation(mode={"validate": "no_grad", "predict": "inference_mode"})
        module, trainer = AsAttribute(), quiet_trainer(callbacks=[callback])
        trainer.validate(module, loader(), verbose=False)
        trainer.test(module, loader(), verbose=False)
        trainer.predict(module, loader())
        assert callback.report.modes == {
            "validate": "no_grad",
            "test": "inference_mode",
            "predict": "inference_mode",
        }

    def test_a_request_that_the_step_cannot_bear_is_warned_of(self, warned: Callable[[], str]) -> None:
        callback = ls.NoGradEvaluation(mode={"test": "inference_mode"})
        with pytest.raises(RuntimeError, match="does not require grad"):
            quiet_trainer(callbacks=[callback]).test(Force(), loader(), verbose=False)
        assert "test_step may need gradients" in warned()
        assert "NoGradEvaluation(mode={'test': 'no_grad'})" in warned()

    def test_gradients_that_only_training_needs_keep_lightnings_mode(self) -> None:
        class Adversarial(ScriptedModule):
            # torch.autograd.grad and .backward() in a comment, and in a text below, are no calls.
            def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
                x = batch[0].clone().requires_grad_()
                torch.autograd.grad(self(x).sum(), x)
                return super().training_step(batch, batch_idx)

            def test_step(self, batch: Any, batch_idx: int) -> None:
                self.log("calls loss.backward()", 1.0 if self.linear.weight.grad is None else 0.0)
                batch[0].requires_grad_(False)

        callback = ls.NoGradEvaluation()
        quiet_trainer(callbacks=[callback]).test(Adversarial(), loader(), verbose=False)
        assert callback.report.modes == {"test": "inference_mode"}
        assert callback.report.issues == ()

    def test_a_callback_that_differentiates_counts_as_the_step_does(self) -> None:
        class Saliency(namespace().Callback):
            def on_test_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, *_: Any) -> None:
                with torch.enable_grad():
                    x = batch[0].clone().requires_grad_()
                    self.found = torch.autograd.grad(pl_module(x).sum(), x)[0]

        callback, saliency = ls.NoGradEvaluation(), Saliency()
        quiet_trainer(callbacks=[callback, saliency]).test(AsAttribute(), loader(), verbose=False)
        assert callback.report.modes == {"test": "no_grad"}
        assert saliency.found.abs().sum() > 0

    def test_two_of_them_in_one_trainer_put_the_switch_back(self) -> None:
        trainer = quiet_trainer(callbacks=[ls.NoGradEvaluation(), ls.NoGradEvaluation()])
        trainer.test(Force(), loader(), verbose=False)
        assert trainer.test_loop.inference_mode is True

    def test_the_step_that_calls_training_step_needs_what_that_needs(self) -> None:
        class Shares(Force):
            def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
                return self.forces(batch[0]).square().mean()

            def test_step(self, batch: Any, batch_idx: int) -> None:
                self.training_step(batch, batch_idx)

        callback = ls.NoGradEvaluation()
        quiet_trainer(callbacks=[callback]).test(Shares(), loader(), verbose=False)
        assert callback.report.modes == {"test": "no_grad"}


class TestWhichModeIsOn:
    """EV-03: the mode that really ran, for each loop, and why."""

    def test_each_loop_of_a_stock_trainer(self, said: Callable[[], str]) -> None:
        module, callback = AsAttribute(), ls.NoGradEvaluation()
        trainer = quiet_trainer(max_epochs=2, callbacks=[callback], num_sanity_val_steps=1)
        trainer.fit(module, loader(), loader())
        trainer.validate(module, loader(), verbose=False)
        trainer.test(module, loader(), verbose=False)
        trainer.predict(module, loader())
        modes = callback.report.modes
        assert {loop for loop, mode in modes.items() if mode == "inference_mode"} == {"validate", "test", "predict"}
        assert {loop for loop, mode in modes.items() if mode == "no_grad"} == {"fit_validation", "sanity"}
        assert said().count("validation inside fit: no_grad") == 1
        assert "less than 2 %" in callback.report.reasons["fit_validation"]

    def test_the_trainers_own_switch_is_the_reason(self) -> None:
        callback = ls.NoGradEvaluation()
        quiet_trainer(callbacks=[callback], inference_mode=False).test(AsAttribute(), loader(), verbose=False)
        assert callback.report.modes == {"test": "no_grad"}
        assert callback.report.reasons == {"test": "Trainer(inference_mode=False)"}

    @pytest.mark.parametrize("where", ["on_validation_start", "on_validation_batch_start", "validation_step"])
    def test_gradients_that_the_program_left_on_are_seen(self, where: str) -> None:
        def turn_on(*args: Any) -> None:
            torch.set_grad_enabled(True)

        module, callback = AsAttribute(), ls.NoGradEvaluation()
        setattr(module, where, turn_on)
        quiet_trainer(max_epochs=1, callbacks=[callback]).fit(module, loader(), loader())
        assert callback.report.modes == {"fit_validation": "grad"}
        assert "set by the program" in callback.report.reasons["fit_validation"]

    def test_inference_mode_inside_fit_only_on_request(self) -> None:
        seen: dict[str, bool] = {}

        class Sees(ScriptedModule):
            def validation_step(self, batch: Any, batch_idx: int) -> None:
                seen["sanity" if self.trainer.sanity_checking else "fit"] = torch.is_inference_mode_enabled()

        follows = ls.NoGradEvaluation(mode={"fit_validation": "inference_mode"})
        quiet_trainer(max_epochs=1, callbacks=[follows], num_sanity_val_steps=1).fit(
            ScriptedModule(), loader(), loader()
        )
        asked = "asked for by mode={'fit_validation': 'inference_mode'}"
        assert follows.report.reasons["fit_validation"] == asked
        assert follows.report.reasons["sanity"] == f"{asked}, which the sanity check follows"

        callback = ls.NoGradEvaluation(mode={"fit_validation": "inference_mode", "sanity": "no_grad"})
        trainer = quiet_trainer(max_epochs=1, callbacks=[callback], num_sanity_val_steps=1)
        trainer.fit(Sees(), loader(), loader())
        assert seen == {"sanity": False, "fit": True}
        assert callback.report.modes == {"fit_validation": "inference_mode", "sanity": "no_grad"}
        assert trainer.fit_loop.epoch_loop.val_loop.inference_mode is False

    def test_the_switch_is_put_back_after_a_run_and_after_an_error(self) -> None:
        class Breaks(Force):
            def test_step(self, batch: Any, batch_idx: int) -> None:
                self.forces(batch[0])
                raise ValueError("on purpose")

        trainer = quiet_trainer(callbacks=[ls.NoGradEvaluation()])
        with pytest.raises(ValueError, match="on purpose"):
            trainer.test(Breaks(), loader(), verbose=False)
        trainer.predict(Force(), loader())
        assert trainer.test_loop.inference_mode is trainer.predict_loop.inference_mode is True
        assert torch.is_grad_enabled()
        assert not torch.is_inference_mode_enabled()

    def test_a_loop_that_does_not_run_is_not_reported(self) -> None:
        callback = ls.NoGradEvaluation()
        quiet_trainer(max_epochs=1, callbacks=[callback]).fit(AsAttribute(), loader())
        assert callback.report.modes == {}
        assert "no evaluation ran" in str(callback.report)
