"""Both Lightnings, in every import order: each program in ``tests/namespace_programs`` runs in a process of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import lightning_speedups
from lightning_speedups import callbacks

pytestmark = pytest.mark.slow
REPOSITORY = Path(__file__).parents[1]
SITE_PACKAGES = Path(importlib.util.find_spec("torch").origin).parents[1]  # type: ignore[union-attr, arg-type]
TIMEOUT_S = 150
STOPPED_AFTER = 3
A_CLASS = {
    "is_a_stock_callback": True,
    "isinstance": True,
    "issubclass": True,
    "a_stock_object_is_none_of_ours": False,
    "derived_is_stock_and_ours": True,
    "class_attribute": True,
    "pickle_keeps_the_type": True,
    "epochs_of_a_fit": STOPPED_AFTER,
    "epochs_of_a_derived_fit": STOPPED_AFTER,
    "name_is_now_the_class": True,
    "attached_unasked": [],
}
LATE = {
    "loaded_with_the_pack": [],
    "loaded_with_the_name": [],
    "late": "<lightning_speedups.EarlyStopping, bound to a Lightning namespace when an object is made>",
    "late_pickles": "<lightning_speedups.EarlyStopping, bound to a Lightning namespace when an object is made>",
    "both_made_for": "pytorch_lightning",
    "both_epochs": STOPPED_AFTER,
    "both_epochs_of_the_earlier_one": STOPPED_AFTER,
    "both_cured_epochs": STOPPED_AFTER,
    "both_isinstance": [True, True, True],
    "both_attached": [
        ["lightning_speedups.bound.pytorch_lightning: val_loss"],
        ["lightning_speedups.bound.lightning: val_loss"],
    ],
    "both_wrong_trainer": (
        "MisconfigurationException: EarlyStopping was made for pytorch_lightning, but this Trainer is from"
        " lightning.pytorch; the program imports both. Import one of the two only, or name the namespace:"
        " `from lightning_speedups.bound.lightning import EarlyStopping`."
    ),
}


def _in(namespace: str) -> dict[str, Any]:
    package = namespace.partition(".")[0]
    return {
        "made_for": namespace,
        "loaded_in_the_end": [namespace],
        "attached": [f"lightning_speedups.bound.{package}: val_loss"],
        "trainer": package,
    }


EXPECTED: dict[str, dict[str, Any]] = {
    "late_lightning": {
        **A_CLASS,
        **LATE,
        **_in("lightning.pytorch"),
        "both_made_earlier_for": "lightning.pytorch",
    },
    "late_pytorch_lightning": {
        **A_CLASS,
        **LATE,
        **_in("pytorch_lightning"),
        "both_made_earlier_for": "pytorch_lightning",
    },
    "only_lightning": {**A_CLASS, **_in("lightning.pytorch"), "other_installed": False},
    "only_pytorch_lightning": {**A_CLASS, **_in("pytorch_lightning"), "other_installed": False},
    "neither": {
        "no_site": True,
        "loaded_before": [],
        "made_for": "pytorch_lightning",
        "loaded_after": ["pytorch_lightning"],
        "no_such_name": (
            "AttributeError: module 'lightning_speedups' has no attribute 'EarlyStoping'; it has "
            + ", ".join(lightning_speedups.__all__)
        ),
        "no_such_bound_name": (
            "AttributeError: module 'lightning_speedups.bound.lightning' has no attribute 'X'; it has "
            + ", ".join(callbacks.NAMES)
        ),
        "listed": True,
        "epochs": STOPPED_AFTER,
    },
}
NOT_INSTALLED = {"only_lightning": "pytorch_lightning", "only_pytorch_lightning": "lightning"}


def site_packages_without(package: str, folder: Path) -> Path:
    """A folder that links to all that is installed, but for one package and its metadata."""
    folder.mkdir()
    for entry in SITE_PACKAGES.iterdir():
        if entry.name != package and not entry.name.startswith(f"{package}-"):
            (folder / entry.name).symlink_to(entry)
    return folder


def facts_of(program: str, folder: Path) -> dict[str, Any]:
    """Run a program and give back what it printed."""
    installed, flags = SITE_PACKAGES, []
    if program in NOT_INSTALLED:
        installed = site_packages_without(NOT_INSTALLED[program], folder / program)
    if program in NOT_INSTALLED or program == "neither":
        flags = ["-S"]
    search = os.pathsep.join(map(str, [REPOSITORY, installed] if flags else [REPOSITORY]))
    environment = {**os.environ, "PYTHONPATH": search, "OMP_NUM_THREADS": "1"}
    environment.pop("LIGHTNING_SPEEDUPS_TEST_NAMESPACE", None)
    done = subprocess.run(
        [sys.executable, *flags, "-m", f"tests.namespace_programs.{program}"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return facts


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What every program told, or the error that kept it from telling; the programs run side by side."""
    folder = tmp_path_factory.mktemp("namespaces")
    with ThreadPoolExecutor(max_workers=2) as pool:
        running = {program: pool.submit(facts_of, program, folder) for program in EXPECTED}
    return {program: result.exception() or result.result() for program, result in running.items()}


@pytest.mark.parametrize(("program", "fact"), [(program, fact) for program in EXPECTED for fact in EXPECTED[program]])
def test_the_program_finds(program: str, fact: str, facts: dict[str, Any]) -> None:
    told = facts[program]
    if isinstance(told, Exception):
        raise told

    assert told[fact] == EXPECTED[program][fact]


def test_a_wrong_argument_is_refused_with_the_exception_of_the_namespace(facts: dict[str, Any]) -> None:
    assert facts["neither"]["wrong_argument"].startswith("MisconfigurationException: EarlyStopping: `mode`")
