"""A partition of slow machines: each process of its jobs runs for one part in three of the time, and is stopped else.

    python slow_partition.py NAME

The processes are those whose environment names the partition; they are told nothing. Ends with its standard input.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

RUN_S, STOP_S = 0.02, 0.04
LOOK_S = 0.25


def processes(mark: bytes) -> list[int]:
    """Return the processes whose environment has an entry, without the one of Slurm that prints what it gets."""
    found = []
    for folder in Path("/proc").iterdir():
        with suppress(OSError):  # it has ended
            if folder.name.isdigit() and mark in (folder / "environ").read_bytes().split(b"\0"):
                found += [int(folder.name)] if (folder / "comm").read_text() != "srun\n" else []
    return found


def send(number: signal.Signals, to: list[int]) -> None:
    """Send a signal to the processes that are still there."""
    for process in to:
        with suppress(ProcessLookupError):
            os.kill(process, number)


def main(name: str) -> None:
    """Slow down until the standard input ends."""
    mark, found, looked = f"SLURM_JOB_PARTITION={name}".encode(), [], 0.0
    while not select.select([sys.stdin], [], [], RUN_S)[0]:
        if time.monotonic() - looked > LOOK_S:
            found, looked = processes(mark), time.monotonic()
        send(signal.SIGSTOP, found)
        time.sleep(STOP_S)
        send(signal.SIGCONT, found)


if __name__ == "__main__":
    main(sys.argv[1])
