"""Cases that go wrong on purpose, for the test of the workers themselves; and one that does not."""

from __future__ import annotations

import os
import time

import torch.distributed as dist

from tests.distributed import distributed_case, on_every_rank


@distributed_case
def passes() -> None:
    assert on_every_rank(dist.get_rank()) == [0, 1]


@distributed_case
def fails_on_rank_1() -> None:
    if dist.get_rank() == 1:
        raise AssertionError("on purpose")
    dist.barrier()


@distributed_case
def dies_on_rank_0() -> None:
    if dist.get_rank() == 0:
        os._exit(7)


@distributed_case
def hangs() -> None:
    time.sleep(600)
