"""EV-01 of the public reports: what an evaluation under inference_mode leaves on the module, in all its kinds."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torchmetrics import CatMetric, MeanMetric

import lightning_speedups as ls
from tests.evaluation.modules import AsAttribute, Scaled, issues
from tests.helpers import loader, quiet_trainer

pytestmark = pytest.mark.filterwarnings("ignore:The ``compute`` method of metric")


class AsBuffer(Scaled):
    def factor(self) -> torch.Tensor:
        if not hasattr(self, "scale"):
            self.register_buffer("scale", torch.ones(1) * 2)
        return self.scale


class InADict(Scaled):
    def __init__(self) -> None:
        super().__init__()
        self.cache: dict[int, torch.Tensor] = {}

    def factor(self) -> torch.Tensor:
        return self.cache.setdefault(8, torch.ones(1) * 2)


class InATuple(Scaled):
    def factor(self) -> torch.Tensor:
        if not hasattr(self, "cos_sin"):
            self.cos_sin = (torch.ones(1), torch.ones(1) * 2)
        return self.cos_sin[1]


class Table:
    """A plain object, as helpers of models often are."""

    def factor(self) -> torch.Tensor:
        if not hasattr(self, "built"):
            self.built = torch.ones(1) * 2
        return self.built


class InAnObject(Scaled):
    def __init__(self) -> None:
        super().__init__()
        self.table = Table()

    def factor(self) -> torch.Tensor:
        return self.table.factor()


class Rotary(nn.Module):
    def forward(self) -> torch.Tensor:
        if not hasattr(self, "cos"):
            self.cos = torch.ones(1) * 2
        return self.cos


class Slots:
    """An object without a dictionary."""

    __slots__ = ("built",)


class InSlots(Scaled):
    def __init__(self) -> None:
        super().__init__()
        self.slots, self.names = Slots(), SimpleNamespace()

    def factor(self) -> torch.Tensor:
        if not hasattr(self.slots, "built"):
            self.slots.built = torch.ones(1) * 2
            self.names.built = torch.ones(1)
        return self.slots.built


class InAClosure(Scaled):
    def __init__(self) -> None:
        super().__init__()
        built: dict[int, torch.Tensor] = {}

        def factor() -> torch.Tensor:
            return built.setdefault(8, torch.ones(1) * 2)

        self.factor = factor  # type: ignore[method-assign]


@functools.lru_cache(maxsize=4)
def mask(size: int) -> torch.Tensor:
    """As masks and positional encodings are often kept."""
    return torch.ones(size) * 2


class InAFunctionsCache(Scaled):
    def factor(self) -> torch.Tensor:
        return mask(1)


class InAMethodsCache(Scaled):
    @functools.cache  # noqa: B019 - what the test is about
    def factor(self) -> tuple[torch.Tensor, int]:
        return torch.ones(1) * 2, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.linear(x) * self.factor()[0]).sum(1)


class OnASubmodule(Scaled):
    def __init__(self) -> None:
        super().__init__()
        self.rotary = Rotary()

    def factor(self) -> torch.Tensor:
        return self.rotary()


class OnTheClass(Scaled):
    shared: torch.Tensor | None = None

    def factor(self) -> torch.Tensor:
        cls = type(self)
        if cls.shared is None:
            cls.shared = torch.ones(1) * 2
        return cls.shared


_TABLES: dict[int, torch.Tensor] = {}


class InItsFile(Scaled):
    def factor(self) -> torch.Tensor:
        if 8 not in _TABLES:
            _TABLES[8] = torch.ones(1) * 2
        return _TABLES[8]


class AsAParameter(Scaled):
    """A lazy layer: its parameters are made by the first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.lazy = nn.LazyLinear(1)

    def factor(self) -> torch.Tensor:
        return self.lazy(torch.ones(1, 3)).squeeze()


CACHES = {
    AsAttribute: "AsAttribute.scale",
    AsBuffer: "AsBuffer.scale",
    InADict: "InADict.cache",
    InATuple: "InATuple.cos_sin",
    InAnObject: "InAnObject.table.built",
    InSlots: "InSlots.names.built",
    InAClosure: "InAClosure.factor",
    InAFunctionsCache: "mask",
    InAMethodsCache: "InAMethodsCache.factor",
    OnASubmodule: "Rotary.cos (rotary)",
    OnTheClass: "OnTheClass.shared",
    InItsFile: "_TABLES",
    AsAParameter: "Linear.weight (lazy)",
}


@pytest.fixture
def _fresh_caches() -> Any:
    yield
    OnTheClass.shared = None
    _TABLES.clear()
    mask.cache_clear()
    InAMethodsCache.factor.cache_clear()


@pytest.mark.usefixtures("_fresh_caches")
class TestInferenceTensorsLeftOnTheModule:
    """EV-01: what an evaluation under inference_mode left on the module can be used in training."""

    @pytest.mark.parametrize("kind", CACHES)
    @pytest.mark.parametrize("loop", ["validate", "test", "predict"])
    def test_a_fit_after_an_evaluation_works_and_the_cache_is_named(
        self, kind: type[Scaled], loop: str, said: Callable[[], str]
    ) -> None:
        module, callback = kind(), ls.NoGradEvaluation()
        trainer = quiet_trainer(max_epochs=1, callbacks=[callback])
        arguments = {} if loop == "predict" else {"verbose": False}
        getattr(trainer, loop)(module, loader(), **arguments)
        assert callback.report.modes == {loop: "inference_mode"}
        assert CACHES[kind] in issues(callback, "inference_tensor")
        trainer.fit(module, loader(), loader())
        assert CACHES[kind] in said()
        assert ("dropped from its cache" if kind is InAFunctionsCache else "cloned") in said()

    @pytest.mark.parametrize("kind", [kind for kind in CACHES if kind is not AsAParameter])
    def test_stock_fails_there(self, kind: type[Scaled]) -> None:
        module, trainer = kind(), quiet_trainer(max_epochs=1)
        trainer.validate(module, loader(), verbose=False)
        with pytest.raises(RuntimeError, match="nference tensor"):
            trainer.fit(module, loader(), loader())

    def test_a_lazy_layer_that_stock_never_trains_is_trained(self) -> None:
        def change(*callbacks: Any) -> float:
            module, trainer = AsAParameter(), quiet_trainer(max_epochs=1, callbacks=list(callbacks))
            trainer.validate(module, loader(), verbose=False)
            before = module.lazy.weight.detach().clone()
            trainer.fit(module, loader(), loader())
            return float((module.lazy.weight.detach() - before).abs().sum())

        assert change() == 0
        assert change(ls.NoGradEvaluation()) > 0

    def test_the_line_that_made_it_is_named(self, said: Callable[[], str]) -> None:
        callback = ls.NoGradEvaluation()
        quiet_trainer(callbacks=[callback]).validate(AsAttribute(), loader(), verbose=False)
        line = AsAttribute.factor.__code__.co_firstlineno + 2
        assert f"AsAttribute.scale was created under inference_mode at modules.py:{line}" in said()

    @pytest.mark.parametrize("metric", [MeanMetric, CatMetric])
    def test_a_metric_that_an_evaluation_used_can_be_used_in_training(self, metric: type) -> None:
        class Measured(AsAttribute):
            def __init__(self) -> None:
                super().__init__()
                self.metric = metric()

            def validation_step(self, batch: Any, batch_idx: int) -> None:
                self.metric.update(self(batch[0]))

            def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
                self.metric.update(self(batch[0]).detach())
                return super().training_step(batch, batch_idx)

        module = Measured()
        trainer = quiet_trainer(max_epochs=1, callbacks=[ls.NoGradEvaluation()])
        trainer.validate(module, loader(), verbose=False)
        trainer.fit(module, loader(), loader())
        assert trainer.global_step == 2

    def test_the_clone_has_the_same_values_and_sharing_is_kept(self) -> None:
        class Twice(AsAttribute):
            def factor(self) -> torch.Tensor:
                made = super().factor()
                self.alias = made
                return made

        module = Twice()
        quiet_trainer(callbacks=[ls.NoGradEvaluation()]).validate(module, loader(), verbose=False)
        assert module.alias is module.scale
        assert module.scale.tolist() == [2.0]
        assert not module.scale.is_inference()

    def test_an_evaluation_that_fails_leaves_none_either(self) -> None:
        class Breaks(AsAttribute):
            def validation_step(self, batch: Any, batch_idx: int) -> None:
                super().validation_step(batch, batch_idx)
                raise ValueError("on purpose")

        module = Breaks()
        with pytest.raises(ValueError, match="on purpose"):
            quiet_trainer(callbacks=[ls.NoGradEvaluation()]).validate(module, loader(), verbose=False)
        assert not module.scale.is_inference()

    def test_inference_mode_inside_fit_on_request_leaves_none_to_the_next_step(self) -> None:
        class OnlyInValidation(AsAttribute):
            def factor(self) -> torch.Tensor:
                return super().factor() if not self.training or hasattr(self, "scale") else torch.ones(1)

        module, callback = OnlyInValidation(), ls.NoGradEvaluation(mode={"fit_validation": "inference_mode"})
        trainer = quiet_trainer(max_epochs=2, callbacks=[callback], val_check_interval=1)
        trainer.fit(module, loader(), loader())
        assert callback.report.modes == {"fit_validation": "inference_mode"}
        assert issues(callback, "inference_tensor") == ["OnlyInValidation.scale"]

    def test_what_was_an_inference_tensor_before_is_the_programs_own(self) -> None:
        with torch.inference_mode():
            kept = torch.ones(1)
        module, callback = AsAttribute(), ls.NoGradEvaluation()
        module.scale = kept
        quiet_trainer(callbacks=[callback]).validate(module, loader(), verbose=False)
        assert module.scale is kept
        assert callback.report.issues == ()
