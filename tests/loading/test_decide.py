"""The decisions, without a clock or a process: from figures to a setting."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_speedups.loading.advice import about_pinning, about_threads
from lightning_speedups.loading.decide import Decision, Question, Tried, decide, is_jittery, persists
from lightning_speedups.loading.probe import Probe
from lightning_speedups.loading.room import Needs, Room, too_large
from lightning_speedups.loading.search import (
    MOST_WORKERS,
    WORTH_SHARE,
    Costs,
    candidates,
    hides,
    most_workers,
    still_climbs,
    thinned,
    worth_s,
)
from lightning_speedups.loading.settings import LoaderSettings

NOTHING = Room()
seconds = st.floats(1e-5, 1.0)
counts = st.integers(0, 16)


def question(current: int = 0, **kw: Any) -> Question:
    asked = {"alone_s": 0.08, "batches": 100, "epochs": 10, "step_s": None, "tolerance": 0.02, "may_persist": True}
    return Question(LoaderSettings(current), **{**asked, **kw})


def tried(**by_workers: Any) -> list[Tried]:
    """Rounds by worker count: ``tried(w0=(0.1, 0.1), w2=0.05)``."""
    rows = []
    for name, rounds in by_workers.items():
        rows.append(Tried(LoaderSettings(int(name[1:])), rounds if isinstance(rounds, tuple) else (rounds,) * 3))
    return rows


def chosen(rows: list[Tried], **kw: Any) -> Decision:
    return decide(rows, question(**kw))


def test_the_fewest_workers_that_are_as_fast_as_the_best_are_taken() -> None:
    decision = chosen(tried(w0=0.08, w2=0.04, w4=0.0200, w8=0.0199))

    assert decision.settings.num_workers == 4
    assert decision.gain == pytest.approx(4, rel=0.01)


def test_what_is_inside_the_noise_is_no_difference() -> None:
    assert chosen(tried(w0=(0.100, 0.104, 0.097), w2=(0.099, 0.103, 0.096))).settings.num_workers == 0


def test_a_gain_beyond_a_spread_of_fifteen_percent_is_too_noisy_to_believe() -> None:
    decision = chosen(tried(w0=(0.10, 0.16, 0.11), w2=(0.09, 0.08, 0.05)))

    assert decision.settings.num_workers == 0
    assert decision.noisy_pct is not None
    assert decision.noisy_pct > 15
    assert decision.reason.startswith("too noisy: unchanged")


def test_a_gain_that_every_round_shows_is_one_however_noisy_the_machine() -> None:
    assert chosen(tried(w0=(0.1, 0.2, 0.4), w4=(0.02, 0.04, 0.08))).settings.num_workers == 4


def test_a_shorter_queue_is_taken_before_a_longer_one() -> None:
    rows = [
        Tried(LoaderSettings(), (0.08,) * 3),
        Tried(LoaderSettings(2, 8), (0.04,) * 3),
        Tried(LoaderSettings(2, 2), (0.04,) * 3),
    ]

    assert chosen(rows).settings == LoaderSettings(2, 2)


def test_starting_workers_counts_where_epochs_are_short() -> None:
    rows = [Tried(LoaderSettings(), (0.08,) * 3, 0.08), Tried(LoaderSettings(8), (0.01,) * 3, 2.0)]

    assert decide(rows, question(batches=10)).settings.num_workers == 0
    assert decide(rows, question(batches=1000)).settings.num_workers == 8


def test_workers_that_will_be_kept_start_once_for_all_epochs() -> None:
    rows = [Tried(LoaderSettings(), (0.08,) * 3, 0.08), Tried(LoaderSettings(8), (0.01,) * 3, 2.0)]

    assert decide(rows, question(batches=10, epochs=100, keeps_workers=True)).settings.num_workers == 8
    assert decide(rows, question(batches=10, epochs=2, keeps_workers=True)).settings.num_workers == 0


def test_the_users_many_workers_stay_unless_fewer_are_shown_to_feed_the_step() -> None:
    rows = tried(w0=0.08, w2=0.0400, w4=0.0400)

    assert decide(rows, question(4)).settings.num_workers == 4
    assert decide(rows, question(4, step_s=0.04)).settings.num_workers == 2
    noisy = tried(w0=0.08, w2=(0.03, 0.04, 0.05), w4=(0.03, 0.04, 0.05))
    assert decide(noisy, question(4, step_s=0.04)).settings.num_workers == 4


@pytest.mark.parametrize(("now_s", "limit"), [(0.12, True), (0.0401, False)])
def test_loading_is_the_limit_where_a_step_with_it_takes_longer_than_alone(now_s: float, limit: bool) -> None:
    assert chosen(tried(w0=now_s, w2=0.04), step_s=0.04).limit is limit
    assert chosen(tried(w0=now_s, w2=0.04)).limit is None


def test_the_current_setting_must_have_been_tried() -> None:
    with pytest.raises(ValueError, match="3 workers"):
        decide(tried(w0=0.1), question(3))


@given(st.dictionaries(counts, st.lists(seconds, min_size=2, max_size=5), min_size=1), st.data())
def test_a_decision_is_one_of_the_settings_tried_and_never_predicts_a_loss(
    rounds: dict[int, list[float]], data: st.DataObject
) -> None:
    rows = [Tried(LoaderSettings(count), tuple(times)) for count, times in rounds.items()]
    current = data.draw(st.sampled_from(sorted(rounds)))
    decision = decide(rows, question(current))

    assert decision.settings in {row.settings for row in rows}
    assert decision.gain >= 1


@given(st.dictionaries(counts, seconds, min_size=1), st.floats(0.1, 10))
def test_a_decision_does_not_depend_on_the_unit_of_time(times: dict[int, float], unit: float) -> None:
    current = min(times)
    one = decide(tried(**{f"w{c}": t for c, t in times.items()}), question(current, alone_s=0.01))
    other = decide(tried(**{f"w{c}": t * unit for c, t in times.items()}), question(current, alone_s=0.01 * unit))

    assert one.settings == other.settings


@given(st.floats(1e-5, 1), st.floats(0, 1), st.integers(1, 64), st.integers(0, 64), st.none() | st.floats(1e-4, 1))
def test_candidates_hold_none_and_the_current_count_and_respect_the_ceiling(
    batch_s: float, share: float, cpus: int, current: int, step_s: float | None
) -> None:
    costs = Costs(batch_s, batch_s * share, step_s)
    found = candidates(costs, cpus, current)

    assert {0, current} <= set(found)
    assert list(found) == sorted(set(found))
    assert max(set(found) - {current}, default=0) <= max(most_workers(costs, cpus), cpus)


def test_cpus_are_a_ceiling_for_loaders_that_compute_and_none_for_those_that_wait() -> None:
    assert max(candidates(Costs(0.1, 0.1), cpus=4, current=0)) == 4
    assert max(candidates(Costs(0.1, 0.001), cpus=4, current=0)) == MOST_WORKERS


@given(st.lists(counts, min_size=1, unique=True).map(sorted), st.integers(2, 8))
def test_thinning_keeps_what_comes_first_and_the_largest(found: list[int], most: int) -> None:
    kept = thinned(found, (found[0],), most)

    assert found[0] in kept
    assert found[-1] in kept
    assert len(kept) <= most
    assert set(kept) <= set(found)


def test_the_climb_ends_where_two_counts_in_a_row_bring_nothing() -> None:
    assert still_climbs([])
    assert still_climbs([100.0, 99.0])
    assert still_climbs([100.0, 99.0, 190.0])
    assert not still_climbs([100.0, 99.0, 98.0])


def test_tuning_may_cost_no_more_than_a_share_of_what_it_can_save() -> None:
    costs = Costs(batch_s=0.1, cpu_s=0.1)
    saved_at_best = 0.1 * 100 * 20

    assert 0 < worth_s(costs, cpus=2, batches=100, epochs=20) <= WORTH_SHARE * saved_at_best
    assert hides(Costs(0.001, 0.001, step_s=0.1), tolerance=0.02)
    assert not hides(Costs(0.05, 0.001, step_s=0.1), tolerance=0.02)
    assert not hides(Costs(0.05, 0.001), tolerance=0.02)


def test_workers_are_kept_where_starting_them_costs_more_than_a_little_of_an_epoch() -> None:
    row = Tried(LoaderSettings(2), (0.01,) * 3, start_s=0.3)

    assert persists(row, question(batches=100))
    assert not persists(row, question(batches=10_000))
    assert not persists(row, question(batches=100, may_persist=False))
    assert not persists(row, question(batches=100, epochs=1))
    assert not persists(Tried(LoaderSettings(), (0.01,) * 3, 0.3), question(batches=100))


def test_a_longer_queue_is_for_waits_that_come_in_bursts() -> None:
    bursts = Tried(LoaderSettings(4), (0.025,) * 3, wait_s=0.005, late_s=0.05)
    starved = Tried(LoaderSettings(1), (0.08,) * 3, wait_s=0.06, late_s=0.06)

    assert is_jittery(bursts, question(step_s=0.02))
    assert not is_jittery(starved, question(step_s=0.02))
    assert not is_jittery(bursts, question())


def test_a_setting_is_valid_as_a_whole() -> None:
    assert LoaderSettings(0, 4, True) == LoaderSettings()
    assert LoaderSettings(3).prefetch_factor == 2
    assert LoaderSettings(3, persistent_workers=True).with_workers(0) == LoaderSettings()
    with pytest.raises(ValueError, match="-1"):
        LoaderSettings(-1)
    setting = LoaderSettings(2, 4, True, True)
    assert LoaderSettings.from_dict(setting.as_dict()) == setting


MIB = 2**20


def test_needs_grow_with_workers_times_prefetch() -> None:
    one, two = (Needs.of(LoaderSettings(w, p), 10 * MIB, 1, 50 * MIB) for w, p in ((4, 2), (16, 8)))

    assert one.in_flight_bytes == 90 * MIB
    assert two.in_flight_bytes == 1290 * MIB
    assert two.worker_bytes == 4 * one.worker_bytes
    assert Needs.of(LoaderSettings(), 10 * MIB, 1, 50 * MIB) == Needs(0, 0, 0)


@pytest.mark.parametrize(
    ("room", "kind", "says"),
    [
        (Room(shm_bytes=64 * MIB), "shm", r"skipped 4x2: needs 90.0 MiB, /dev/shm has 64.0 MiB.*--shm-size"),
        (Room(ram_bytes=200 * MIB), "memory", "batches in flight"),
        (Room(ram_bytes=450 * MIB), "memory", "workers and batches"),
        (Room(open_files=20), "open_files", "ulimit -n"),
    ],
)
def test_what_does_not_fit_is_refused_with_figures_and_a_way_round(room: Room, kind: str, says: str) -> None:
    settings = LoaderSettings(4)
    refusal = too_large(settings, Needs.of(settings, 10 * MIB, 1, 50 * MIB), room)

    assert refusal is not None
    assert refusal.kind == kind

    assert re.search(says, refusal.message)
    assert too_large(LoaderSettings(), Needs.of(LoaderSettings(), 10 * MIB, 1, 50 * MIB), room) is None
    assert too_large(settings, Needs.of(settings, 10 * MIB, 1, 50 * MIB), NOTHING) is None


def a_probe(**kw: Any) -> Probe:
    seen: dict[str, Any] = {
        "batch_s": 0.1,
        "cpu_s": 0.1,
        "samples_per_batch": 8.0,
        "batch_bytes": 1024,
        "tensors": 1,
        "unpinnable": None,
        "deterministic": True,
        "changed": (),
        "records": (),
        "exhausted": False,
        "iterable": False,
        "batched_gain": None,
    }
    return Probe(**{**seen, **kw})


def test_threads_in_workers_are_counted_against_the_cpus_of_all_ranks() -> None:
    (said,) = about_threads(threads=17, settings=LoaderSettings(12), cpus=8, ranks=2)

    assert said.startswith("336 runnable threads on 16 CPUs")
    assert "cv2.setNumThreads(0)" in said
    assert not list(about_threads(threads=3, settings=LoaderSettings(12), cpus=2, ranks=1))


def test_pinning_that_does_nothing_is_named_with_its_reason() -> None:
    pinned = LoaderSettings(pin_memory=True)

    assert list(about_pinning(pinned, a_probe(), "cpu", pins=False)) == ["pin_memory=True is ignored on cpu: remove it"]
    (said,) = about_pinning(pinned, a_probe(unpinnable="Batch"), "cuda", pins=True)
    assert said.startswith("pin_memory=True has no effect: batch type Batch has no pin_memory()")
