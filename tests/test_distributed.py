"""Every distributed case as a test: it passes where it passes on all ranks."""

from __future__ import annotations

import os
from collections.abc import Iterator

import psutil
import pytest

from tests.distributed import Case, Ranks, all_cases

pytestmark = pytest.mark.distributed
CASES = sorted(all_cases().values(), key=lambda case: (case.world_size, case.name))


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, Ranks]]:
    """One set of workers per world size, started when the first case needs it."""
    started = {size: Ranks(size, tmp_path_factory.mktemp(f"ranks{size}")) for size in {c.world_size for c in CASES}}
    yield started
    for ranks in started.values():
        ranks.end()


@pytest.mark.parametrize("case", [c for c in CASES if not c.name.startswith("faults.")], ids=lambda case: case.name)
def test_case_passes_on_every_rank(case: Case, groups: dict[int, Ranks]) -> None:
    problems = groups[case.world_size].run(case.name)

    assert not any(problems), "\n".join(problems)


def test_a_case_that_fails_or_hangs_or_dies_on_one_rank_says_which_and_costs_no_other(groups: dict[int, Ranks]) -> None:
    ranks = groups[2]
    ranks.end()
    others = set(psutil.Process(os.getpid()).children())

    fails = ranks.run("faults.fails_on_rank_1")
    assert ("waits" in fails[0] or "had no result" in fails[0], "on purpose" in fails[1]) == (True, True)
    dies = ranks.run("faults.dies_on_rank_0")
    assert "exit code 7" in dies[0]
    hangs = ranks.run("faults.hangs", timeout_s=2)
    assert ["had no result" in problem for problem in hangs] == [True, True]
    assert set(psutil.Process(os.getpid()).children()) <= others
    assert ranks.run("faults.passes") == ["", ""]
