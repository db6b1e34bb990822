from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from lightning_speedups.measuring import rng

DRAWS = {
    "python": random.random,
    "numpy": np.random.rand,
    "numpy_normal": lambda: np.random.standard_normal(1)[0],
    "torch": lambda: torch.rand(()).item(),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS.keys())
def test_a_single_draw_from_any_stream_shows_in_the_fingerprint(draw):
    before = rng.fingerprint()
    assert rng.fingerprint() == before

    draw()
    assert rng.fingerprint() != before


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS.keys())
def test_restoring_gives_the_same_draws_again(draw):
    # One draw first: numpy keeps the second half of a normal pair aside.
    draw()
    state = rng.capture()
    drawn = [draw() for _ in range(5)]
    rng.restore(state)

    assert [draw() for _ in range(5)] == drawn


def test_a_preserved_block_leaves_every_stream_where_it_was():
    before = rng.fingerprint()
    with rng.preserved() as state:
        for draw in DRAWS.values():
            draw()
    assert rng.fingerprint() == before == state.fingerprint


def _draw_and_fail():
    for draw in DRAWS.values():
        draw()
    raise KeyError


def test_a_preserved_block_that_raises_leaves_them_too():
    before = rng.fingerprint()
    with pytest.raises(KeyError), rng.preserved():
        _draw_and_fail()
    assert rng.fingerprint() == before


def test_a_captured_state_does_not_move_with_the_streams():
    state = rng.capture()
    kept = state.fingerprint
    for draw in DRAWS.values():
        draw()

    assert state.fingerprint == kept


@pytest.mark.skipif(torch.cuda.is_initialized(), reason="an earlier test has started CUDA already")
def test_cuda_is_never_started():
    rng.restore(rng.capture())

    assert rng.capture().cuda is None
    assert not torch.cuda.is_initialized()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_streams_of_cuda_devices_are_put_back():
    torch.cuda.init()
    before = rng.fingerprint()
    with rng.preserved():
        drawn = torch.rand(3, device="cuda").tolist()
        assert rng.fingerprint() != before

    assert rng.fingerprint() == before
    assert torch.rand(3, device="cuda").tolist() == drawn
