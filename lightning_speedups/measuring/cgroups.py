"""CPU quota and memory limit of the cgroups that this process is in, versions 1 and 2, nested ones included.

Linux lets every cgroup on the way from the process to the root set a limit, and the tightest one holds. Paths in
a container often do not exist below its own mount, in which case the mount's root stands for the container.
Layouts: version 2 alone at the root; version 1 with a folder per controller; both, with version 2 in ``unified``.
Source: Linux kernel documentation, admin-guide/cgroup-v2 and admin-guide/cgroup-v1.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def cpu_quota(root: Path = ROOT, membership: Path = MEMBERSHIP) -> float | None:
    """The CPUs' worth of time that the tightest cgroup grants, or None where none sets a quota."""
    quotas: list[float] = []
    for folder in _folders("cpu", root, membership):
        words = (_read(folder / "cpu.max") or "").split()
        if len(words) == 2:
            quotas += _ratio(*words)
        quotas += _ratio(_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us"))
    return round(min(quotas), 2) if quotas else None


def memory_left(root: Path = ROOT, membership: Path = MEMBERSHIP) -> int | None:
    """The bytes until the fullest cgroup reaches its limit, or None where none sets a limit.

    File cache that the kernel would drop first counts as free, as it does in the working set of Kubernetes:
    reading a data set fills the cgroup with it, and plain usage would then always stand at the limit.
    """
    left: list[int] = []
    for folder in _folders("memory", root, membership):
        for limit_name, usage_name, cache_name in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit, usage = _number(_read(folder / limit_name)), _number(_read(folder / usage_name))
            if limit is not None and usage is not None:
                left.append(max(0, limit - max(0, usage - _droppable(folder, cache_name))))
    return min(left) if left else None


def _folders(controller: str, root: Path, membership: Path) -> Iterator[Path]:
    """Every existing cgroup folder above this process that may limit ``controller``, each once."""
    seen: set[Path] = set()
    for mount, path in _memberships(controller, root, membership):
        # A path out of the container's own view begins with "..": only the mount's root is ours to read.
        inside = Path() if ".." in Path(path).parts else Path(path.lstrip("/"))
        for relative in (inside, *inside.parents):
            folder = mount / relative
            if folder not in seen and folder.is_dir():
                seen.add(folder)
                yield folder


def _memberships(controller: str, root: Path, membership: Path) -> Iterator[tuple[Path, str]]:
    yield from ((root, ""), (root / controller, ""))
    for line in (_read(membership) or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            yield root, path
            yield root / "unified", path
        elif controller in controllers.split(","):
            yield root / controllers, path
            yield root / controller, path


def _ratio(quota: str | None, period: str | None) -> list[float]:
    """The quota in CPUs as a list of one, or an empty list for "max", -1 and what is missing."""
    granted, length = _number(quota), _number(period)
    return [granted / length] if granted and length and granted > 0 else []


def _droppable(folder: Path, name: str) -> int:
    for line in (_read(folder / "memory.stat") or "").splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return _number(value) or 0
    return 0


def _number(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
