from __future__ import annotations

import json
import math
import os
import sys
from dataclasses import asdict

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lightning_speedups
from lightning_speedups.measuring import cgroups
from lightning_speedups.measuring.budget import (
    CpuBudget,
    Limits,
    cpu_budget,
    free_ram_bytes,
    free_shm_bytes,
    open_files_left,
)

MIB = 2**20
GIB = 2**30


class Machine:
    """A cgroup tree and a membership file under a temporary folder."""

    def __init__(self, folder):
        self.root, self.membership = folder / "cgroup", folder / "membership"
        self.root.mkdir()
        self.membership.write_text("")

    def belongs_to(self, *lines):
        self.membership.write_text("\n".join(lines) + "\n")

    def write(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    @property
    def where(self):
        return {"cgroup_root": self.root, "membership": self.membership}

    def quota(self):
        return cgroups.cpu_quota(self.root, self.membership)

    def memory_left(self):
        return cgroups.memory_left(self.root, self.membership)

    def cpus(self, **kw):
        return cpu_budget(**{"environ": {}, "host": 80, "affinity": 16, **self.where, **kw})


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_the_chain_tells_how_the_figure_came_about(machine):
    machine.write("cpu.max", "400000 100000")
    budget = machine.cpus(local_ranks=2)

    assert budget.usable == 2
    assert budget.chain == ("80 host", "16 affinity", "quota 4.0", "2 ranks")
    assert str(budget) == "80 host, 16 affinity, quota 4.0, 2 ranks -> 2 per rank"


def test_without_a_quota_affinity_limits(machine):
    assert str(machine.cpus()) == "80 host, 16 affinity, 1 rank -> 16 per rank"


def test_a_budget_becomes_json(machine):
    assert json.loads(json.dumps(asdict(machine.cpus()))) == {
        "usable": 16,
        "chain": ["80 host", "16 affinity", "1 rank"],
    }


@pytest.mark.parametrize(
    ("quota", "usable"), [("150000 100000", 2), ("25000 100000", 1), ("max 100000", 16), ("100000", 16), ("", 16)]
)
def test_a_quota_of_version_2_counts_rounded_up(machine, quota, usable):
    machine.write("cpu.max", quota)
    assert machine.cpus().usable == usable


@pytest.mark.parametrize("folder", ["cpu", "cpu,cpuacct"])
@pytest.mark.parametrize(("quota", "expected"), [(350000, 3.5), (-1, None)])
def test_a_quota_of_version_1_counts_in_either_folder_name(machine, folder, quota, expected):
    machine.belongs_to(f"3:{folder}:/job")
    machine.write(f"{folder}/job/cpu.cfs_quota_us", quota)
    machine.write(f"{folder}/job/cpu.cfs_period_us", 100000)

    assert machine.quota() == expected


def test_a_quota_without_its_period_is_not_guessed(machine):
    machine.write("cpu/cpu.cfs_quota_us", 100000)
    assert machine.quota() is None


@pytest.mark.parametrize("tightest", ["", "slice", "slice/job", "slice/job/step"])
def test_the_tightest_of_nested_cgroups_holds(machine, tightest):
    machine.belongs_to("0::/slice/job/step")
    for level in ("", "slice", "slice/job", "slice/job/step"):
        machine.write(f"{level}/cpu.max".lstrip("/"), "800000 100000")
    machine.write(f"{tightest}/cpu.max".lstrip("/"), "200000 100000")

    assert machine.quota() == 2.0


def test_a_cgroup_beside_ours_does_not_count(machine):
    machine.belongs_to("0::/ours")
    machine.write("ours/cpu.max", "max 100000")
    machine.write("theirs/cpu.max", "100000 100000")

    assert machine.quota() is None


@pytest.mark.parametrize("path", ["/docker/0123456789ab", "/../../outside"])
def test_a_path_that_does_not_exist_inside_a_container_means_the_mounts_root(machine, path):
    machine.belongs_to(f"0::{path}", f"4:memory:{path}")
    machine.write("cpu.max", "300000 100000")
    machine.write("memory/memory.limit_in_bytes", GIB)
    machine.write("memory/memory.usage_in_bytes", 0)

    assert machine.quota() == 3.0
    assert machine.memory_left() == GIB


def test_both_versions_side_by_side_are_read(machine):
    machine.belongs_to("2:cpu,cpuacct:/a", "0::/b")
    machine.write("cpu,cpuacct/a/cpu.cfs_quota_us", 600000)
    machine.write("cpu,cpuacct/a/cpu.cfs_period_us", 100000)
    machine.write("unified/b/cpu.max", "500000 100000")

    assert machine.quota() == 5.0


@pytest.mark.parametrize(
    ("environ", "usable"),
    [({"SLURM_CPUS_PER_TASK": "4"}, 4), ({"SLURM_CPUS_PER_TASK": "64"}, 16), ({"SLURM_CPUS_PER_TASK": "many"}, 16)],
)
def test_slurms_share_counts_where_it_is_a_number(machine, environ, usable):
    budget = machine.cpus(environ=environ)

    assert budget.usable == usable
    assert ("per SLURM task" in str(budget)) == environ["SLURM_CPUS_PER_TASK"].isdecimal()


@given(
    st.integers(1, 256), st.integers(1, 256), st.none() | st.floats(0.1, 300), st.none() | st.integers(1, 64),
    st.integers(1, 16),
)  # fmt: skip
def test_the_least_is_shared_out_and_every_rank_gets_one(host, affinity, quota, slurm, ranks):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cgroups, "cpu_quota", lambda *_: quota)
        environ = {} if slurm is None else {"SLURM_CPUS_PER_TASK": str(slurm)}
        budget = cpu_budget(host=host, affinity=affinity, environ=environ, local_ranks=ranks)

    known = [host, affinity, *([math.ceil(quota)] if quota else []), *([slurm] if slurm else [])]
    assert budget.usable == max(1, min(known) // ranks)


def test_stated_cpus_replace_what_would_be_measured(machine):
    machine.write("cpu.max", "100000 100000")

    assert str(machine.cpus(limits=Limits(cpus=32), local_ranks=4)) == "32 stated, 4 ranks -> 8 per rank"
    assert machine.cpus(limits=Limits(ram_bytes=1)).usable == 1


def test_this_machine_has_at_least_one_cpu_and_no_more_than_it_has():
    budget = cpu_budget()

    assert 1 <= budget.usable <= os.cpu_count()
    assert isinstance(budget, CpuBudget)


def test_without_affinity_the_chain_leaves_it_out(machine, monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert str(machine.cpus(affinity=None, host=3)) == "3 host, 1 rank -> 3 per rank"


def test_fewer_than_one_rank_is_refused():
    with pytest.raises(ValueError, match="local_ranks must be 1 or more, got 0"):
        cpu_budget(local_ranks=0)


@pytest.mark.parametrize(
    ("limit", "usage", "cache"),
    [
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ],
)
def test_memory_left_is_the_limit_less_what_cannot_be_dropped(machine, limit, usage, cache):
    folder = "" if limit == "memory.max" else "memory/"
    machine.write(folder + limit, 1000 * MIB)
    machine.write(folder + usage, 900 * MIB)
    assert machine.memory_left() == 100 * MIB

    machine.write(folder + "memory.stat", f"active_file {5 * MIB}\n{cache} {300 * MIB}")
    assert machine.memory_left() == 400 * MIB


def test_the_fullest_of_nested_cgroups_holds_and_never_below_zero(machine):
    machine.belongs_to("0::/job/step")
    for folder, limit, usage in (("job", 1000, 1010), ("job/step", 800, 100)):
        machine.write(f"{folder}/memory.max", limit)
        machine.write(f"{folder}/memory.current", usage)

    assert machine.memory_left() == 0


def test_no_memory_limit_leaves_what_the_system_has(machine):
    machine.write("memory.max", "max")
    machine.write("memory.current", 5)

    assert machine.memory_left() is None
    assert 0 < free_ram_bytes(**machine.where) <= psutil.virtual_memory().total


def test_the_lesser_of_cgroup_and_system_is_free(machine):
    machine.write("memory.max", 10 * MIB)
    machine.write("memory.current", 4 * MIB)

    assert free_ram_bytes(**machine.where) == 6 * MIB
    assert free_ram_bytes(Limits(ram_bytes=7), **machine.where) == 7


@pytest.mark.parametrize("text", ["", "garbage", "1 2 3", "\x00"])
def test_files_that_make_no_sense_are_no_limit(machine, text):
    machine.belongs_to("0::/", text)
    for name in ("cpu.max", "memory.max", "memory.current", "memory.stat"):
        machine.write(name, text)

    assert machine.quota() is None
    assert machine.memory_left() is None


def test_where_there_are_no_cgroups_nothing_is_limited(tmp_path):
    nowhere = {"root": tmp_path / "none", "membership": tmp_path / "none"}

    assert cgroups.cpu_quota(**nowhere) is None
    assert cgroups.memory_left(**nowhere) is None


def test_free_shared_memory_is_what_the_filesystem_has(tmp_path):
    assert 0 < free_shm_bytes(path=tmp_path) <= psutil.disk_usage(str(tmp_path)).total
    assert free_shm_bytes(path=tmp_path / "none") is None
    assert free_shm_bytes(Limits(shm_bytes=64 * MIB)) == 64 * MIB


@pytest.mark.skipif(sys.platform == "win32", reason="Windows sets no such limit")
def test_files_left_falls_by_what_is_opened(tmp_path):
    before = open_files_left()
    files = [(tmp_path / str(number)).open("w") for number in range(5)]
    during = open_files_left()
    for file in files:
        file.close()

    assert before - during == 5
    assert open_files_left(Limits(open_files=3)) == 3


def test_figures_that_this_system_does_not_give_are_none(monkeypatch):
    monkeypatch.delattr(os, "statvfs", raising=False)
    monkeypatch.setitem(sys.modules, "resource", None)

    assert free_shm_bytes() is None
    assert open_files_left() is None


@pytest.mark.parametrize("name", ["cpus", "ram_bytes", "shm_bytes", "open_files"])
@pytest.mark.parametrize("value", [2.0, "2", True, [2]])
def test_limits_must_be_whole_numbers(name, value):
    with pytest.raises(TypeError, match=rf"Limits\({name}=\.\.\.\) must be a whole number.*or None.*of type"):
        Limits(**{name: value})


@pytest.mark.parametrize(
    ("name", "value", "least"), [("cpus", 0, 1), ("cpus", -3, 1), ("ram_bytes", -1, 0), ("open_files", -1, 0)]
)
def test_limits_have_a_least(name, value, least):
    with pytest.raises(ValueError, match=rf"Limits\({name}=\.\.\.\) must be at least {least}.*got {value}"):
        Limits(**{name: value})


def test_limits_take_numpys_numbers_and_keep_plain_ones():
    assert type(Limits(cpus=np.int64(3)).cpus) is int


def test_limits_are_public():
    assert lightning_speedups.Limits is Limits
