from __future__ import annotations

import importlib.metadata

import importing
import pytest


def test_heavy_modules_are_told_by_their_package():
    assert importing.heavy_in(["scipy.sparse", "scipyx", "json", "jinja2"]) == ["scipy.sparse", "jinja2"]


def test_hiding_the_package_takes_away_its_entry_points_and_no_others():
    group = "pytorch_lightning.callbacks_factory"
    everything = {found.name for found in importlib.metadata.distributions()}
    left = {found.name for found in importing._listing_without(importing.OURS)()}

    assert everything - left == {"lightning_speedups"}
    assert importlib.metadata.entry_points(group=group)["lightning_speedups"].module == "lightning_speedups.callbacks"
    assert not importing._has_our_entry_point(importing._listing_without(importing.OURS), "pytorch_lightning")


def test_trainers_are_made_with_and_without_the_package():
    result = importing.trainer_pairs("pytorch_lightning", pairs=2)

    assert result.a_s.n == result.b_s.n == result.noise.n == 2


def test_a_package_that_is_not_installed_is_no_measurement(monkeypatch):
    monkeypatch.setattr(importing, "_listing_without", lambda hidden: lambda **context: [])
    with pytest.raises(RuntimeError, match="not installed, or cannot be hidden"):
        importing.trainer_pairs("pytorch_lightning", pairs=2)
