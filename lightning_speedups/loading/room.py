"""Whether a setting fits into memory, shared memory and open files, before it is tried. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from lightning_speedups.loading.report import Refusal
from lightning_speedups.loading.settings import LoaderSettings
from lightning_speedups.reporting import text

# Shared memory: a tenth is others' and a tenth is the allocator's rounding. Memory: batches in flight are second to
# everything else in the program, workers to the model. Files: the pipes and queues of a worker, and one descriptor
# for each tensor in flight (torch's file_descriptor sharing); measured with torch 2.13 on Linux.
SHM_SHARE = 0.8
IN_FLIGHT_SHARE = 0.25
WORKERS_SHARE = 0.5
FILES_SHARE = 0.8
FILES_PER_WORKER = 6


@dataclass(frozen=True)
class Room:
    """What one loader may take, its share of what all loaders and ranks on this machine have; None: not known."""

    ram_bytes: int | None = None
    shm_bytes: int | None = None
    open_files: int | None = None

    def shared(self, among: int) -> Room:
        """What is left for each of so many."""
        ram_bytes, shm_bytes, open_files = (
            None if have is None else have // among for have in (self.ram_bytes, self.shm_bytes, self.open_files)
        )
        return Room(ram_bytes, shm_bytes, open_files)


@dataclass(frozen=True)
class Needs:
    """What a setting takes."""

    in_flight_bytes: int
    worker_bytes: int
    files: int

    @classmethod
    def of(cls, settings: LoaderSettings, batch_bytes: int, tensors: int, worker_bytes: int) -> Needs:
        """The needs of ``settings`` for batches of so many bytes and tensors, and workers of so many bytes each."""
        if settings.num_workers == 0:
            return cls(0, 0, 0)
        # The batch in the training process's hands is one more, and so is the one that is being pinned.
        batches = settings.in_flight + 1 + settings.pin_memory
        return cls(
            in_flight_bytes=batch_bytes * batches,
            worker_bytes=worker_bytes * settings.num_workers,
            files=FILES_PER_WORKER * settings.num_workers + tensors * batches,
        )


def too_large(settings: LoaderSettings, needs: Needs, room: Room) -> Refusal | None:
    """Why a setting does not fit; None where it does."""
    workers = f"{settings.num_workers} workers x prefetch {settings.prefetch_factor}"
    skipped = f"skipped {settings.num_workers}x{settings.prefetch_factor}:"
    if room.shm_bytes is not None and needs.in_flight_bytes > SHM_SHARE * room.shm_bytes:
        return Refusal(
            "shm",
            workers,
            f"{skipped} needs {text.size_of(needs.in_flight_bytes)}, /dev/shm has {text.size_of(room.shm_bytes)};"
            " give the container more (docker --shm-size=1g or --ipc=host), or make the batch smaller",
        )
    if room.ram_bytes is not None and needs.in_flight_bytes > IN_FLIGHT_SHARE * room.ram_bytes:
        return Refusal(
            "memory",
            workers,
            f"{skipped} {text.size_of(needs.in_flight_bytes)} of batches in flight are more than"
            f" {IN_FLIGHT_SHARE:.0%} of the {text.size_of(room.ram_bytes)} that are free for this loader",
        )
    if room.ram_bytes is not None and needs.worker_bytes + needs.in_flight_bytes > WORKERS_SHARE * room.ram_bytes:
        return Refusal(
            "memory",
            workers,
            f"{skipped} workers and batches need {text.size_of(needs.worker_bytes + needs.in_flight_bytes)}, more than"
            f" {WORKERS_SHARE:.0%} of the {text.size_of(room.ram_bytes)} that are free for this loader",
        )
    if room.open_files is not None and needs.files > FILES_SHARE * room.open_files:
        return Refusal(
            "open_files",
            workers,
            f"{skipped} needs about {needs.files} open files, {room.open_files} may still be opened; raise the limit"
            " (ulimit -n) or set torch.multiprocessing.set_sharing_strategy('file_system')",
        )
    return None
