"""NoGradEvaluation on several gloo ranks: the reason is said, and another batch size is agreed on by all of them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, Subset

import lightning_speedups as ls
from tests.distributed import ddp_trainer, distributed_case, on_every_rank
from tests.evaluation.modules import AsAttribute, Force
from tests.helpers import ScriptedModule, loader


@distributed_case
def gloo_is_the_reason_for_no_grad() -> None:
    callback = ls.NoGradEvaluation()
    ddp_trainer(callbacks=[callback]).test(AsAttribute(), loader(n=16), verbose=False)
    assert callback.report.modes == {"test": "no_grad"}
    assert "gloo" in callback.report.reasons["test"]
    first, second = on_every_rank(str(callback.report))
    assert first == second


@distributed_case
def a_request_that_gloo_rules_out_is_answered() -> None:
    callback = ls.NoGradEvaluation(mode={"fit_validation": "inference_mode"})
    ddp_trainer(max_epochs=1, callbacks=[callback]).fit(Force(), loader(n=16), loader(n=16))
    assert callback.report.modes == {"fit_validation": "no_grad"}
    assert "gloo" in callback.report.reasons["fit_validation"]


@distributed_case
def the_graph_of_a_step_is_measured_under_ddp_too() -> None:
    callback = ls.NoGradEvaluation()
    ddp_trainer(max_epochs=1, callbacks=[callback]).fit(ScriptedModule(), loader(n=16), loader(n=16))
    # The input (8) and the result, which is squared (1).
    assert on_every_rank(callback.report.graph_bytes_avoided) == [4 * (8 + 1) * 4] * 2


class Rows(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((8,), float(index))


class Measures(ScriptedModule):
    """Logs a mean, synchronised; on the ranks named it logs what depends on the batch."""

    def __init__(self, *apart: int) -> None:
        super().__init__()
        self.apart = apart
        self.sizes: list[int] = []
        self.seen: list[torch.Tensor] = []

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.sizes.append(len(batch))
        self.seen.append(batch[:, 0])
        score = float(len(batch)) if self.global_rank in self.apart else batch.mean()
        self.log("score", score, sync_dist=True, batch_size=len(batch), reduce_fx="max" if self.apart else "mean")


def tested(module: Any, size: int | None) -> tuple[Any, Any]:
    callback = ls.NoGradEvaluation(eval_batch_size=size)
    results = ddp_trainer(callbacks=[callback]).test(module, DataLoader(Rows(), batch_size=4), verbose=False)
    return results[0], callback


@distributed_case
def every_rank_gets_its_samples_in_other_batches() -> None:
    module, stock = Measures(), Measures()
    before, _ = tested(stock, None)
    after, callback = tested(module, 10)
    assert module.sizes == [10, 10]
    assert torch.equal(torch.cat(module.seen), torch.cat(stock.seen))
    assert abs(after["score"] - before["score"]) < 1e-5 * before["score"]
    assert callback.report.eval_batch_sizes == {"test": 10}


@distributed_case
def a_metric_that_changes_on_one_rank_keeps_the_batches_of_all() -> None:
    module = Measures(1)
    _, callback = tested(module, 10)
    assert module.sizes == [4] * 5
    kinds = [issue.kind for issue in callback.report.issues]
    assert on_every_rank(kinds) == [["metric_changes_with_batch"]] * 2


@distributed_case
def a_loader_that_cannot_on_one_rank_keeps_the_batches_of_all() -> None:
    module, callback = Measures(), ls.NoGradEvaluation(eval_batch_size=10)
    # 18 rows of one rank in whole batches of 4 are others than in whole batches of 10.
    rows = Subset(Rows(), range(18)) if dist.get_rank() == 0 else Subset(Rows(), range(16))
    data = DataLoader(rows, batch_size=4, drop_last=dist.get_rank() == 0)
    ddp_trainer(callbacks=[callback], use_distributed_sampler=False).test(module, data, verbose=False)
    assert module.sizes == [4] * 4
    assert [issue.kind for issue in callback.report.issues] == ["metric_changes_with_batch"]
