"""What this process may use of the machine: CPUs, memory, shared memory, open files.

A container or a scheduler grants less than the host has. Each figure is the least of what is known, and every
source can be replaced, so that tests and careful users can state a machine: through ``Limits``, or through the
folder that stands for the cgroup tree. What a system does not tell is None, never an error.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path

import psutil

from lightning_speedups.measuring import cgroups

SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Limits:
    """What this process may use, stated instead of measured; None means measure it.

    Args:
        cpus: CPUs for all ranks on this machine together, at least 1.
        ram_bytes: free memory in bytes.
        shm_bytes: free shared memory in bytes, which is where workers put their batches.
        open_files: how many more files may be opened.

    Raises:
        TypeError: a value that is no whole number.
        ValueError: a value below its least.

    Example:
        >>> cpu_budget(Limits(cpus=8), local_ranks=2).usable
        4
    """

    cpus: int | None = None
    ram_bytes: int | None = None
    shm_bytes: int | None = None
    open_files: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("cpus", 1), ("ram_bytes", 0), ("shm_bytes", 0), ("open_files", 0)):
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, Integral):
                raise TypeError(
                    f"Limits({name}=...) must be a whole number of at least {least}, or None to measure it;"
                    f" got {value!r} of type {type(value).__name__}"
                )
            if value < least:
                raise ValueError(f"Limits({name}=...) must be at least {least}, or None to measure it; got {value!r}")
            object.__setattr__(self, name, int(value))


@dataclass(frozen=True)
class CpuBudget:
    """The CPUs that one rank may use, and the ``chain`` of figures that led there.

    Example:
        >>> str(CpuBudget(usable=2, chain=("80 host", "16 affinity", "quota 4.0", "2 ranks")))
        '80 host, 16 affinity, quota 4.0, 2 ranks -> 2 per rank'
    """

    usable: int
    chain: tuple[str, ...]

    def __str__(self) -> str:
        return f"{', '.join(self.chain)} -> {self.usable} per rank"


def cpu_budget(
    limits: Limits | None = None,
    local_ranks: int = 1,
    environ: Mapping[str, str] | None = None,
    cgroup_root: Path = cgroups.ROOT,
    membership: Path = cgroups.MEMBERSHIP,
    host: int | None = None,
    affinity: int | None = None,
) -> CpuBudget:
    """How many CPUs each rank may use: the least of what host, affinity, cgroup quota and SLURM allow, shared out.

    Args:
        limits: ``limits.cpus`` stands in for all that would be measured.
        local_ranks: the processes of this job that share these CPUs. Where the scheduler binds each rank to
            CPUs of its own, they share none: pass 1.
        environ: the environment to look for ``SLURM_CPUS_PER_TASK`` in; this process's if None.
        cgroup_root: where the cgroup trees are mounted.
        membership: the file that names this process's cgroups.
        host: CPUs of the machine; measured if None.
        affinity: CPUs that the process may be scheduled on; measured if None, left out where unknown.

    Raises:
        ValueError: fewer than one rank.
    """
    if local_ranks < 1:
        raise ValueError(f"local_ranks must be 1 or more, got {local_ranks}")
    ranks = f"{local_ranks} rank{'s' if local_ranks > 1 else ''}"
    if limits is not None and limits.cpus is not None:
        return CpuBudget(max(1, limits.cpus // local_ranks), (f"{limits.cpus} stated", ranks))
    host = host or os.cpu_count() or 1
    affinity = affinity or _affinity()
    quota = cgroups.cpu_quota(cgroup_root, membership)
    slurm = _slurm_cpus(os.environ if environ is None else environ)
    found = {
        f"{host} host": host,
        f"{affinity} affinity": affinity,
        f"quota {quota}": None if quota is None else math.ceil(quota),
        f"{slurm} per SLURM task": slurm,
    }
    known = {text: cpus for text, cpus in found.items() if cpus is not None}
    return CpuBudget(max(1, min(known.values()) // local_ranks), (*known, ranks))


def free_ram_bytes(
    limits: Limits | None = None, cgroup_root: Path = cgroups.ROOT, membership: Path = cgroups.MEMBERSHIP
) -> int:
    """The memory that this process can still get: the least of the system's and that of the tightest cgroup."""
    if limits is not None and limits.ram_bytes is not None:
        return limits.ram_bytes
    in_cgroup = cgroups.memory_left(cgroup_root, membership)
    in_system = int(psutil.virtual_memory().available)
    return in_system if in_cgroup is None else min(in_system, in_cgroup)


def free_shm_bytes(limits: Limits | None = None, path: Path = SHARED_MEMORY) -> int | None:
    """The free shared memory; None where the system keeps none at ``path``."""
    if limits is not None and limits.shm_bytes is not None:
        return limits.shm_bytes
    if not (hasattr(os, "statvfs") and path.is_dir()):
        return None
    filesystem = os.statvfs(path)
    return filesystem.f_bavail * filesystem.f_frsize


def open_files_left(limits: Limits | None = None) -> int | None:
    """How many more files this process may open; None where the system does not tell."""
    if limits is not None and limits.open_files is not None:
        return limits.open_files
    try:
        import resource
    except ImportError:
        return None
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return sys.maxsize
    return max(0, allowed - psutil.Process().num_fds())


def _affinity() -> int | None:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None


def _slurm_cpus(environ: Mapping[str, str]) -> int | None:
    value = environ.get("SLURM_CPUS_PER_TASK", "")
    return int(value) if value.isdecimal() and int(value) > 0 else None
