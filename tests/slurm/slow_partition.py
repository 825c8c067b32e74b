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

RUN_S, STOP_S = 0.005, 0.01
LOOK_S = 0.25
LOOKS = 4  # at one process: after a fork it has its parent's environment until it runs its own program


class Partition:
    """Processes of the jobs of one partition."""

    def __init__(self, name: str) -> None:
        self._mark = f"SLURM_JOB_PARTITION={name}".encode()
        self._looks: dict[int, int] = {}
        self._looked = 0.0
        self.processes: set[int] = set()

    def look(self) -> None:
        """Look for new processes, if it is time."""
        if time.monotonic() - self._looked < LOOK_S:
            return
        self._looked = time.monotonic()
        there = {int(name) for name in os.listdir("/proc") if name.isdigit()}  # noqa: PTH208 - names alone, and often
        self.processes &= there
        self._looks = {process: self._looks.get(process, 0) + 1 for process in there}
        for process in there - self.processes:
            if self._looks[process] <= LOOKS and self._is_member(Path("/proc") / str(process)):
                self.processes.add(process)

    def _is_member(self, folder: Path) -> bool:
        with suppress(OSError):  # it has ended
            # Slurm's own client prints the signals that it gets.
            is_client = (folder / "comm").read_text() == "srun\n"
            return not is_client and self._mark in (folder / "environ").read_bytes().split(b"\0")
        return False

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the processes that are still there."""
        for process in self.processes:
            with suppress(ProcessLookupError):
                os.kill(process, number)


def main(name: str) -> None:
    """Slow down until the standard input ends."""
    partition = Partition(name)
    while not select.select([sys.stdin], [], [], RUN_S)[0]:
        partition.send(signal.SIGSTOP)
        time.sleep(STOP_S)
        partition.send(signal.SIGCONT)
        partition.look()


if __name__ == "__main__":
    main(sys.argv[1])
