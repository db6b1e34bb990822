"""``eval_batch_size``: other batches, the same samples and metrics, or the user's own batches and the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, Sampler, SequentialSampler
from torchmetrics.classification import MulticlassAccuracy

import lightning_speedups as ls
from lightning_speedups.evaluation import rebatch
from lightning_speedups.measuring import rng
from tests.evaluation.modules import issues
from tests.helpers import ScriptedModule, namespace, quiet_trainer

pl = namespace()
CombinedLoader = pl.utilities.CombinedLoader
USERS, OURS = 4, 10
ROWS = 54


class Rows(Dataset[Any]):
    """Rows and labels; counts how often each is read."""

    def __init__(self, n: int = ROWS) -> None:
        self.rows = torch.randn(n, 8, generator=torch.Generator().manual_seed(1))
        self.reads: list[int] = []

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        self.reads.append(index)
        return self.rows[index], int(self.rows[index].sum() > 0)


class Scores(ScriptedModule):
    """Logs a mean over samples, a torchmetrics accuracy and a count; keeps what it saw, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.accuracy = MulticlassAccuracy(num_classes=2, average="micro")
        self.seen: list[torch.Tensor] = []
        self.sizes: list[int] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return self(batch[0]).square().mean()

    def _evaluate(self, batch: Any) -> None:
        rows, labels = batch
        score = self(rows)
        self.accuracy(torch.cat([-score, score], 1), labels)
        self.log("loss", score.square().mean(), batch_size=len(rows))
        self.log("accuracy", self.accuracy)
        self.log("positives", labels.sum().float(), reduce_fx="sum")
        self.sizes.append(len(rows))
        self.seen.append(rows.detach())

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self._evaluate(batch)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self._evaluate(batch)

    def predict_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return self(batch[0])


class InBatchNegatives(Scores):
    """A contrastive loss: each sample is compared with the others of its batch."""

    def _evaluate(self, batch: Any) -> None:
        rows, _ = batch
        self.log("contrastive", torch.cdist(rows, rows).mean(), batch_size=len(rows))
        self.sizes.append(len(rows))


class CountsBatches(Scores):
    def _evaluate(self, batch: Any) -> None:
        self.log("batches", 1.0, reduce_fx="sum")
        self.sizes.append(len(batch[0]))


class LooksAtTheFirst(Scores):
    def _evaluate(self, batch: Any) -> None:
        if len(self.sizes) == 0:
            self.log("first", float(batch[0].sum()))
        self.sizes.append(len(batch[0]))


class CountsKinds(Scores):
    """Changes with the batch size only where a batch holds both kinds: not in the first rows of sorted data."""

    def _evaluate(self, batch: Any) -> None:
        self.log("kinds", batch[1].unique().numel() ** 2 / 2.0, batch_size=len(batch[1]))
        self.sizes.append(len(batch[0]))


class NeedsItsLogger(Scores):
    def _evaluate(self, batch: Any) -> None:
        self.logger.experiment.add_scalar("x", 1.0)


def validate(module: Any, callback: Any, data: Any = None, **trainer: Any) -> Any:
    made = quiet_trainer(callbacks=[callback], **trainer)
    return made.validate(module, DataLoader(Rows(), USERS) if data is None else data, verbose=False)


class TestAgreeing:
    @pytest.mark.parametrize("loop", ["validate", "test"])
    def test_the_same_samples_in_order_and_the_same_metrics(self, loop: str) -> None:
        torch.manual_seed(0)
        module, callback, data = Scores(), ls.NoGradEvaluation(eval_batch_size=OURS), DataLoader(Rows(), USERS)
        stock = getattr(quiet_trainer(), loop)(module, data, verbose=False)
        seen, module.seen, module.sizes = torch.cat(module.seen), [], []
        ours = getattr(quiet_trainer(callbacks=[callback]), loop)(module, data, verbose=False)
        assert module.sizes == [10, 10, 10, 10, 10, 4]
        assert torch.equal(torch.cat(module.seen), seen)
        assert ours[0] == pytest.approx(stock[0], rel=1e-5)
        assert callback.report.eval_batch_sizes == {loop: OURS}
        assert issues(callback, "metric_changes_with_batch") == []

    def test_inside_fit_the_training_loader_and_the_weights_are_untouched(self) -> None:
        def run(callback: Any) -> tuple[Scores, Any]:
            pl.seed_everything(5, verbose=False)
            module = Scores()
            trainer = quiet_trainer(max_epochs=2, callbacks=[callback], num_sanity_val_steps=1)
            trainer.fit(module, DataLoader(Rows(), USERS, shuffle=True), DataLoader(Rows(), USERS))
            return module, trainer

        module, trainer = run(ls.NoGradEvaluation(eval_batch_size=OURS))
        state = rng.fingerprint()
        alone, stock = run(pl.Callback())
        assert rng.fingerprint() == state
        assert module.sizes == [10, *[10, 10, 10, 10, 10, 4] * 2]
        assert torch.equal(module.linear.weight, alone.linear.weight)
        assert trainer.train_dataloader.batch_size == USERS
        assert trainer.num_training_batches == stock.num_training_batches

    def test_the_module_and_the_loaders_are_the_users_again_afterwards(self) -> None:
        module, data = Scores(), DataLoader(Rows(), USERS)
        trainer = quiet_trainer(callbacks=[ls.NoGradEvaluation(eval_batch_size=OURS)])
        before = {name: value.clone() for name, value in module.state_dict().items()}
        trainer.validate(module, data, verbose=False)
        assert trainer.validate_loop._combined_loader.flattened == [data]
        assert data.batch_size == USERS
        assert "setup_data" not in vars(trainer.validate_loop)
        assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())

    def test_a_loader_of_the_users_class_keeps_its_parts(self) -> None:
        class Mine(DataLoader[Any]):
            def __init__(self, rows: Any, tag: str) -> None:
                super().__init__(rows, USERS, collate_fn=self.collate, sampler=Backwards(rows))
                self.tag = tag

            @staticmethod
            def collate(samples: list[Any]) -> Any:
                return torch.stack([row for row, _ in samples]) + 1, torch.tensor([label for _, label in samples])

        module, rows = Scores(), Rows()
        module_stock = Scores()
        module_stock.load_state_dict(module.state_dict())
        validate(module_stock, pl.Callback(), Mine(rows, "a"))
        validate(module, ls.NoGradEvaluation(eval_batch_size=OURS), Mine(rows, "a"))
        assert torch.equal(torch.cat(module.seen), torch.cat(module_stock.seen))
        assert module.sizes[0] == OURS

    def test_workers_and_several_loaders(self) -> None:
        module, callback = Scores(), ls.NoGradEvaluation(eval_batch_size=OURS)
        data = [DataLoader(Rows(), USERS, num_workers=1, persistent_workers=True), DataLoader(Rows(20), 2)]
        results = validate(module, callback, data)
        assert module.sizes == [10, 10, 10, 10, 10, 4, 10, 10]
        assert len(results) == 2

    def test_the_size_that_a_loader_has_already_needs_no_proof(self) -> None:
        rows = Rows()
        validate(Scores(), ls.NoGradEvaluation(eval_batch_size=USERS), DataLoader(rows, USERS))
        assert len(rows.reads) == ROWS

    def test_the_proof_reads_few_samples_once(self) -> None:
        rows = Rows()
        validate(Scores(), ls.NoGradEvaluation(eval_batch_size=OURS), DataLoader(rows, USERS))
        assert len(rows.reads) == ROWS + 2 * OURS + USERS // 2 + 1

    @pytest.mark.parametrize("sizes", [(10, 4), (4, 10), (1, 7), (8, 8)])
    @pytest.mark.parametrize("n", [3, 20, 21, 25, 26, 100, 1001])
    def test_the_proof_reads_the_same_samples_at_both_sizes_from_first_to_last(
        self, n: int, sizes: tuple[int, int]
    ) -> None:
        rows = Rows(n)
        pair = rebatch.batches_of(DataLoader(rows, sizes[1], sampler=Backwards(rows)), sizes)
        ours, users = (torch.cat([batch[0] for batch in batches]) for batches in pair)
        assert torch.equal(ours, users)
        assert rows.reads == sorted(set(rows.reads), reverse=True)
        assert len(rows.reads) == min(n, 2 * max(sizes) + min(sizes) // 2 + 1)
        assert (rows.reads[0], rows.reads[-1]) == (n - 1, 0)

    def test_drop_last_where_no_sample_or_the_same_ones_are_left_out(self) -> None:
        for n in (40, 41):
            module, data = Scores(), DataLoader(Rows(n), USERS, drop_last=True)
            validate(module, ls.NoGradEvaluation(eval_batch_size=OURS), data)
            assert module.sizes == [OURS] * 4

    def test_predict_keeps_its_batches(self, said: Callable[[], str]) -> None:
        results = quiet_trainer(callbacks=[ls.NoGradEvaluation(eval_batch_size=OURS)]).predict(
            Scores(), DataLoader(Rows(), USERS)
        )
        assert len(results) == 14
        assert "predict returns one item a batch" in said()


class Backwards(Sampler[int]):
    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[int]:
        return iter(reversed(range(len(self.rows))))


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        rows = Rows()
        return (rows[index] for index in range(ROWS))


class Halves(DataLoader[Any]):
    """Changes each batch on its way to the loop."""

    def __iter__(self) -> Any:
        return ([part[::2] for part in batch] for batch in super().__iter__())


class HandMade:
    def __iter__(self) -> Iterator[Any]:
        return iter([(torch.ones(2, 8), torch.zeros(2, dtype=torch.long))])


class TestRefusing:
    @pytest.mark.parametrize(
        ("kind", "message"),
        [
            (InBatchNegatives, "logged metrics change with the batch size: contrastive is"),
            (CountsBatches, "batches is 3, not 6"),
            (LooksAtTheFirst, "first is"),
            (NeedsItsLogger, "the comparison of both sizes on a copy of the module failed (AttributeError"),
        ],
    )
    def test_metrics_that_change(self, kind: type[Scores], message: str, warned: Callable[[], str]) -> None:
        module, callback = kind(), ls.NoGradEvaluation(eval_batch_size=OURS)
        trainer = {"logger": pl.loggers.TensorBoardLogger(".")} if kind is NeedsItsLogger else {}
        validate(module, callback, **trainer)
        assert set(module.sizes) <= {USERS, ROWS % USERS}
        assert len(issues(callback, "metric_changes_with_batch")) == 1
        assert message in warned()
        assert "validate keeps its batch size instead of eval_batch_size=10" in warned()

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: DataLoader(Endless(), USERS), "IterableDataset"),
            (
                lambda: CombinedLoader([DataLoader(Rows(), USERS)] * 2, "min_size"),
                "the loaders are combined in the mode 'min_size'",
            ),
            (lambda: HandMade(), "a HandMade, which is no DataLoader"),
            (
                lambda: DataLoader(Rows(), batch_sampler=Pairs(SequentialSampler(Rows()), 2, False)),
                "a batch sampler of its own",
            ),
            (
                lambda: DataLoader(Rows(50), USERS, drop_last=True),
                "drop_last=True would leave out other samples at 10 than at 4: 0 of them instead of 2",
            ),
            (lambda: Halves(Rows(), USERS), "its class Halves overrides __iter__"),
        ],
    )
    def test_loaders_that_cannot(self, make: Any, message: str, warned: Callable[[], str]) -> None:
        module, callback, data = Scores(), ls.NoGradEvaluation(eval_batch_size=OURS), make()
        if isinstance(data, CombinedLoader):
            module = Both()
        validate(module, callback, data)
        assert max(module.sizes) <= USERS
        assert message in warned()

    def test_a_metric_that_would_change_late_in_sorted_data(self, warned: Callable[[], str]) -> None:
        rows = Rows(100)
        rows.rows = rows.rows[rows.rows.sum(1).argsort()]
        module = CountsKinds()
        validate(module, ls.NoGradEvaluation(eval_batch_size=OURS), DataLoader(rows, USERS))
        assert set(module.sizes) == {USERS}
        assert "logged metrics change with the batch size: kinds is" in warned()

    @pytest.mark.parametrize("hook", ["on_validation_start", "on_validation_batch_end", "on_validation_epoch_end"])
    def test_callbacks_that_may_log_in_evaluation(self, hook: str, warned: Callable[[], str]) -> None:
        def log(trainer: Any, pl_module: Any, *_: Any) -> None:
            pl_module.log("of_a_batch", 1.0, on_epoch=True)

        class Logs(pl.Callback):
            pass

        setattr(Logs, hook, lambda self, *arguments: log(*arguments))
        for callback in (Logs(), pl.callbacks.LambdaCallback(**{hook: log})):
            module = Scores()
            trainer = quiet_trainer(callbacks=[callback, ls.NoGradEvaluation(eval_batch_size=OURS)])
            trainer.validate(module, DataLoader(Rows(), USERS), verbose=False)
            assert set(module.sizes) == {USERS, ROWS % USERS}
            assert f"the callback {type(callback).__name__} acts in {hook}" in warned()

    def test_callbacks_of_lightnings_own_and_for_other_loops_do_not_matter(self) -> None:
        class InTesting(pl.Callback):
            def on_test_batch_end(self, *_: Any) -> None: ...

        module = Scores()
        callbacks = [InTesting(), pl.callbacks.Timer(), ls.NoGradEvaluation(eval_batch_size=OURS)]
        quiet_trainer(callbacks=callbacks).validate(module, DataLoader(Rows(), USERS), verbose=False)
        assert module.sizes[0] == OURS

    @pytest.mark.parametrize("limits", [{"limit_val_batches": 2}, {"limit_val_batches": 0.5}, {"fast_dev_run": True}])
    def test_trainers_that_count_batches(self, limits: dict[str, Any], warned: Callable[[], str]) -> None:
        module = Scores()
        validate(module, ls.NoGradEvaluation(eval_batch_size=OURS), **limits)
        assert set(module.sizes) == {USERS}
        assert "counts batches" in warned()

    def test_a_module_that_cannot_be_copied(self, warned: Callable[[], str]) -> None:
        module = Scores()
        module.stuck = nn.Parameter(torch.ones(1)) * 2
        validate(module, ls.NoGradEvaluation(eval_batch_size=OURS))
        assert module.sizes[0] == USERS
        assert "failed (RuntimeError: Only Tensors created explicitly" in warned()


class Both(Scores):
    """Gets a batch of each loader at a time."""

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self._evaluate(batch[0])


class Pairs(BatchSampler):
    """Somebody's own way to form batches."""
