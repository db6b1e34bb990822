"""Suite 5: the plugin pickles and deep-copies, before and after a fit, and one instance serves several fits."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from tests.plugins import Plugin, each_plugin
from tests.shared.program import Scenario, improving, run, stalling
from tests.shared.test_resume import lasting_state

COPIERS: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda made: pickle.loads(pickle.dumps(made)),
    "deepcopy": copy.deepcopy,
}
STALLS = Scenario(curve=stalling, trainer={"max_epochs": 6})


@each_plugin(kind="callback")
@pytest.mark.parametrize("copier", COPIERS)
def test_a_copy_made_before_the_fit_does_what_the_original_does(plugin: Plugin, copier: str) -> None:
    original = plugin.make()
    duplicate = COPIERS[copier](original)

    first, second = (run(STALLS, **plugin.attach(made)) for made in (original, duplicate))

    assert type(duplicate) is type(original)
    assert first.differences(second) == set()
    assert lasting_state(plugin, duplicate) == lasting_state(plugin, original)


@each_plugin(kind="callback")
@pytest.mark.parametrize("copier", COPIERS)
def test_a_copy_made_after_the_fit_has_the_state_and_runs(plugin: Plugin, copier: str) -> None:
    original = plugin.make()
    first = run(STALLS, **plugin.attach(original))
    duplicate = COPIERS[copier](original)

    assert lasting_state(plugin, duplicate) == lasting_state(plugin, original)
    assert run(STALLS, **plugin.attach(duplicate)).differences(first) == set()


@each_plugin(kind="callback")
@pytest.mark.parametrize("before", [improving, stalling])
def test_a_second_fit_with_one_instance_is_like_the_first_of_a_new_one(
    plugin: Plugin, before: Callable[[int], float]
) -> None:
    used, fresh = plugin.make(), plugin.make()
    run(Scenario(curve=before), **plugin.attach(used))

    again, first = (run(STALLS, **plugin.attach(made)) for made in (used, fresh))

    assert again.differences(first) == set()
    assert lasting_state(plugin, used) == lasting_state(plugin, fresh)
