from __future__ import annotations

import multiprocessing
import subprocess
import sys
import threading
import time

import psutil
import pytest

from lightning_speedups.measuring.memory import MemorySampler

MIB = 2**20
_HOLDER = "data = bytearray(100 * 2**20); print(flush=True); input()"


def hold(mib):
    data = bytearray(mib * MIB)
    data[::4096] = b"x" * len(data[::4096])
    return data


def test_a_block_held_within_shows_in_the_peak_also_after_it_is_freed():
    with MemorySampler(interval_s=0.01) as sampler:
        base = sampler.peak
        data = hold(150)
        deadline = time.monotonic() + 30
        while sampler.peak.rss_mib < base.rss_mib + 140 and time.monotonic() < deadline:
            time.sleep(0.02)
        del data

    assert sampler.peak.rss_mib >= base.rss_mib + 140
    assert sampler.peak.samples > base.samples


def test_children_count_and_a_child_can_be_watched_from_its_parent():
    child = subprocess.Popen([sys.executable, "-c", _HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        child.stdout.readline()
        with MemorySampler(child.pid) as of_child, MemorySampler() as of_both:
            pass
    finally:
        child.kill()
        child.communicate(timeout=30)

    assert of_child.peak.rss_mib > 100
    assert of_child.peak.processes == 1
    assert of_both.peak.processes >= 2
    assert of_both.peak.rss_mib > of_child.peak.rss_mib


def test_memory_that_belongs_to_one_process_alone_is_at_most_its_resident_memory():
    with MemorySampler() as sampler:
        pass

    assert 0 < sampler.peak.uss_mib <= sampler.peak.rss_mib


def test_a_process_that_ends_while_watched_is_no_error():
    child = subprocess.Popen([sys.executable, "-c", _HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        child.stdout.readline()
        with MemorySampler(child.pid, interval_s=0.01) as sampler:
            child.kill()
            child.communicate(timeout=30)
    finally:
        child.kill()

    assert sampler.peak.rss_mib > 100


def test_what_the_system_does_not_tell_is_none(monkeypatch):
    def denied(self):
        raise psutil.AccessDenied(self.pid)

    monkeypatch.setattr(psutil.Process, "memory_full_info", denied)
    with MemorySampler() as sampler:
        pass

    assert sampler.peak.uss_mib is None
    assert sampler.peak.rss_mib > 0


def test_the_thread_stops_with_the_block_also_when_it_raises():
    with pytest.raises(KeyError), MemorySampler(interval_s=0.01):
        raise KeyError

    assert not [thread for thread in threading.enumerate() if thread.name == "memory-sampler"]
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("interval_s", [0, -1.0, float("nan")])
def test_the_interval_must_be_above_zero(interval_s):
    with pytest.raises(ValueError, match=f"above 0, got {interval_s}"):
        MemorySampler(interval_s=interval_s)
