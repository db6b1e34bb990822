from __future__ import annotations

import evaluation
import pytest
import torch
from evaluating.live import peak_of


def test_the_peak_of_live_tensors_is_exact():
    layer = torch.nn.Linear(8, 16, bias=False)
    x = torch.randn(4, 8)

    def two_results():
        first = layer(x)
        second = first * 2
        del first
        return (second + 1).sum()

    with torch.no_grad():
        assert peak_of(two_results, [layer.weight, x]) == 2 * 4 * 16 * 4 + 4


def test_what_is_freed_counts_no_more():
    def one_after_the_other():
        for _ in range(5):
            torch.zeros(1024)

    assert peak_of(one_after_the_other, []) == 4096


@pytest.mark.slow
def test_memory_falls_at_least_threefold_and_the_callback_tells_about_how_much():
    with_graph, without_graph, told = evaluation.memory()

    assert with_graph > 3 * without_graph
    assert told == pytest.approx(with_graph - without_graph, rel=0.2)


def test_pairs_run_with_and_without_the_callback():
    calls = []
    evaluation.paired(lambda with_callback: calls.append(with_callback) or 1.0, pairs=1)

    assert set(calls) == {True, False}
