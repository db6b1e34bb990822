"""Proof before change: what stands against other worker counts, found without running the program's code.

Pickling is the exception, and only where workers are not forked: torch would pickle the same things for them.
"""

from __future__ import annotations

import ast
import multiprocessing
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lightning_speedups import _torch
from lightning_speedups.loading import handles, pickles
from lightning_speedups.loading.probe import Probe
from lightning_speedups.loading.report import Refusal
from lightning_speedups.loading.workers_check import WorkersCheck
from lightning_speedups.reporting import text

_SENT = ("dataset", "collate_fn", "worker_init_fn")


def start_method(loader: Any) -> str:
    """How the loader would start its workers."""
    context = loader.multiprocessing_context or multiprocessing
    method: str = context.get_start_method()
    return method


def before_any_trial(loader: Any, most_bytes: int | None) -> Iterator[Refusal]:
    """What forbids even a trial: it would disturb the run, or workers cannot work."""
    for name, value in vars(loader).items():
        if name != "_iterator" and _torch.is_loader_iterator(value):
            yield Refusal(
                "stateful",
                f"{type(loader).__name__}.{name}",
                f"{type(loader).__name__} keeps a live iterator in {name}: its workers are running already",
            )
    method = start_method(loader)
    if method == "fork":
        yield from _shared(loader)
        return
    if _main_has_no_guard():
        yield Refusal(
            "unpicklable",
            "__main__",
            f'under the start method "{method}" each worker imports the main script again, and {sys.argv[0]} has no'
            ' `if __name__ == "__main__":` around its start; add it to use workers',
        )
        return
    yield from _unpicklable(loader, method, most_bytes)


def after_probe(loader: Any, probe: Probe) -> Iterator[Refusal]:
    """What loading without workers showed against workers."""
    name = type(loader.dataset).__name__
    if probe.changed:
        path, what = probe.changed[0]
        where = f"{path} ({what})" if what else path
        consequence = (
            "each worker would start from the same copy of it in every epoch, and repeat the same numbers"
            if "generator" in what
            else "each worker would change a copy of its own, and the training process see none of it"
        )
        yield Refusal(
            "stateful",
            path,
            f"num_workers kept: loading samples changes {where}; {consequence}. Let a sample depend on its index only",
        )
    elif probe.iterable and probe.deterministic is not True:
        yield Refusal(
            "duplicates_data",
            name,
            f"num_workers kept: two passes over {name} do not give the same samples, so it cannot be shown that"
            " workers would share them out rather than repeat them",
        )
    elif probe.iterable and loader.drop_last:
        yield Refusal(
            "duplicates_data",
            name,
            f"num_workers kept: with drop_last each worker drops its own last samples of {name}, so that another count"
            " trains on others",
        )


def after_check(loader: Any, probe: Probe, check: WorkersCheck) -> Iterator[Refusal]:
    """What two workers showed against workers."""
    name = type(loader.dataset).__name__
    if check.wrong is not None:
        yield Refusal(
            "records_differ",
            name,
            f"num_workers kept: with two workers {name}[{check.wrong!r}] is not what it is without (compared"
            f" {check.compared} samples); something is shared between processes or depends on the order of reads",
        )
    if not probe.iterable or not (check.duplicated or check.missing):
        return
    if check.duplicated:
        said = (
            "dataset does not shard (no use of get_worker_info seen); 2 workers would duplicate"
            f" {'every sample' if check.duplicated >= check.compared // 2 else f'{check.duplicated} samples'}"
        )
    else:
        said = (
            f"two workers left out {check.missing} of the first {check.compared} samples; they may come later, but the"
            " part that can be read here does not show it"
        )
    yield Refusal("duplicates_data", name, f"num_workers kept at {loader.num_workers}: {said}")


def _shared(loader: Any) -> Iterator[Refusal]:
    for part in _SENT:
        value = getattr(loader, part, None)
        if value is None:
            continue
        name = type(value).__name__ if part == "dataset" else part
        for path, what in handles.shared_handles(value, name):
            yield Refusal(
                "shared_handle",
                path,
                f"{path} is {what} created in the parent (forked workers share it, and with it the position in it):"
                " open it in __getitem__, once per process",
            )
        for path, what in handles.shared_state(value, name):
            yield Refusal(
                "stateful", path, f"{path} is shared with other processes ({what}): trials would change it in the run"
            )


def _unpicklable(loader: Any, method: str, most_bytes: int | None) -> Iterator[Refusal]:
    try:
        found = pickles.unpicklable_part(loader, most_bytes)
    except pickles.TooLarge:
        yield Refusal(
            "memory",
            "dataset",
            f'under the start method "{method}" each worker gets a pickled copy of the dataset, of more than'
            f" {text.size_of(most_bytes)}",
        )
        return
    if found is not None:
        where, why = found
        yield Refusal(
            "unpicklable",
            where,
            f'cannot use workers under the start method "{method}": {where} is {why}; staying at'
            f" num_workers={loader.num_workers}. Move it to the top level of a module",
        )


def _main_has_no_guard() -> bool:
    """Whether a worker that imports the main script would run the whole program again."""
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    # A prompt, a notebook or `python -m` with a package behind it is not run again as a script is.
    if file is None or getattr(main, "__spec__", None) is not None:
        return False
    try:
        tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return False
    return not any(
        isinstance(node, ast.If) and any(isinstance(n, ast.Name) and n.id == "__name__" for n in ast.walk(node.test))
        for node in tree.body
    )
