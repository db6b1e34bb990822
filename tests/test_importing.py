"""Importing the package loads nothing that it does not need yet. How long it takes: ``benchmarks/importing.py``."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = {"fairscale", "matplotlib", "jinja2", "typer", "sklearn", "scipy"}

_MODULES = """
import json, sys
{first}
before = set(sys.modules)
import lightning_speedups as ls
{then}
print(json.dumps(sorted({{module.partition(".")[0] for module in set(sys.modules) - before}})))
"""


def packages_added(then="", first=""):
    """The top-level packages that a new process loads with the package, after ``first`` and together with ``then``."""
    command = [sys.executable, "-c", _MODULES.format(first=first, then=then)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=200)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_the_package_alone_loads_neither_torch_nor_lightning_nor_anything_heavy():
    added = packages_added()

    assert not added & (
        HEAVY | {"torch", "pytorch_lightning", "lightning", "lightning_fabric", "numpy", "rich", "psutil"}
    )
    assert "lightning_speedups" in added


def test_limits_load_neither_torch_nor_lightning():
    added = packages_added(then="ls.Limits(cpus=2)")

    assert not added & (HEAVY | {"torch", "pytorch_lightning", "lightning", "rich"})


@pytest.mark.parametrize("namespace", ["pytorch_lightning", "lightning.pytorch"])
def test_after_lightning_it_loads_nothing_heavy_that_lightning_has_not_loaded(namespace):
    added = packages_added(first=f"import {namespace}", then='ls.EarlyStopping("val_loss", patience=3)')

    assert not added & HEAVY
    assert not added & ({"pytorch_lightning", "lightning"} - {namespace.partition(".")[0]})
