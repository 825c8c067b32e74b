"""Notes of the ranks for the process that may start their launch again: small files in one folder of this node.

The kernel may kill a rank at any time. So each note is one file or one appended line, and a missing note means
"unknown".
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from torchx_cubicml.records.trial import State
from torchx_cubicml.settings import option

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchx_cubicml.settings import JobEnvironment

_STEPPED, _SAVED, _SECOND, _END, _NEW_PATHS, _RANK = "stepped", "saved", "second", "end-", "new-paths-", "rank-"
_GOES_ON = "goes-on"
GOES_ON_AS_TYPED = "goes on with a training of another config"
_MOST_READ = 1 << 20  # characters of one note


class AttemptNotes:
    """Notes of one rank. Writing never raises.

    Args:
        folder: folder of the attempt.
        rank: global rank of this process.
    """

    def __init__(self, folder: str, rank: int) -> None:
        self._folder = Path(folder)
        self._rank = rank

    def began(self, job: JobEnvironment) -> None:
        """Note this process and its job, in place of the notes from before a restart on how it ended."""
        with suppress(OSError):
            (self._folder / f"{_END}{self._rank}").unlink(missing_ok=True)
        place = {"pid": os.getpid(), "node": job.node, "nnodes": job.nnodes, "store": job.store_address}
        self._write(f"{_RANK}{self._rank}", json.dumps(place))

    def rewritten(self, second: str) -> None:
        """Note the encoded contract of a second attempt, where the job itself has rewritten the command."""
        self._write(_SECOND, second)

    @property
    def second(self) -> str:
        """Encoded contract of a second attempt; empty if the launch can have none, or none any more."""
        if any((self._folder / name).exists() for name in (_STEPPED, _SAVED)):
            return ""
        return option("second_attempt") or "".join(_lines(self._folder / _SECOND))

    @property
    def new_paths_file(self) -> Path:
        """File that lists the paths that this rank makes, one JSON string per line."""
        return self._folder / f"{_NEW_PATHS}{self._rank}"

    def stepped(self) -> None:
        """Note that optimizer steps were measured."""
        self._write(_STEPPED, "")

    def saved(self) -> None:
        """Note that a checkpoint was saved, or may be from now on."""
        self._write(_SAVED, "")

    def goes_on(self) -> None:
        """Note that this rank ends because it goes on with a training of another config."""
        self._write(_GOES_ON, GOES_ON_AS_TYPED)

    def ended(self, state: State) -> None:
        """Note the state in which this rank ends."""
        self._write(f"{_END}{self._rank}", state.value)

    def _write(self, name: str, text: str) -> None:
        with suppress(OSError):
            (self._folder / name).write_text(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProcess:
    """Process of one rank.

    Args:
        pid: its process id.
        node: index of its node among ``nnodes``.
        nnodes: nodes of the job.
        store: host and port of the agents' TCPStore; ``None`` where there is none.
    """

    pid: int
    node: int
    nnodes: int
    store: tuple[str, int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """Notes of all ranks of one node.

    Args:
        stepped: whether optimizer steps were measured.
        saved: whether a checkpoint was saved.
        ends: rank -> state in which it ended; without the ranks that a signal ended.
        new_paths: absolute paths that the ranks made, in their order.
        second: encoded contract of the second attempt, where the job has rewritten the command; else empty.
        processes: processes of the ranks.
        goes_on: that the launch goes on with a training of another config, in words; empty if it does not.
    """

    stepped: bool = False
    saved: bool = False
    ends: Mapping[int, State] = field(default_factory=dict)
    new_paths: tuple[str, ...] = ()
    second: str = ""
    processes: tuple[RankProcess, ...] = ()
    goes_on: str = ""

    @property
    def failed_ranks(self) -> dict[int, int]:
        """Rank -> an exit code, of the ranks whose program has failed by their own account."""
        return {rank: 1 for rank, state in self.ends.items() if state is not State.COMPLETED}


def read_attempt(path: str) -> Attempt:
    """Return the notes in the folder of an attempt; damaged ones are left out."""
    folder = Path(path)
    ends: dict[int, State] = {}
    for file in folder.glob(f"{_END}*"):
        with suppress(OSError, ValueError):
            ends[int(file.name.removeprefix(_END))] = State(file.read_text())
    lines = [line for file in sorted(folder.glob(f"{_NEW_PATHS}*")) for line in _lines(file)]
    return Attempt(
        stepped=(folder / _STEPPED).exists(),
        saved=(folder / _SAVED).exists(),
        ends=ends,
        new_paths=tuple(dict.fromkeys(path for path in map(_path, lines) if path)),
        second="".join(_lines(folder / _SECOND)),
        processes=read_processes(path),
        goes_on="".join(_lines(folder / _GOES_ON)),
    )


def read_processes(folder: str) -> tuple[RankProcess, ...]:
    """Return the processes of this node's ranks; of a restarted rank the last one."""
    processes = []
    for file in sorted(Path(folder).glob(f"{_RANK}*")):
        with suppress(OSError, ValueError, TypeError):
            place = json.loads(file.read_text())
            store = place.pop("store")
            processes.append(RankProcess(**place, store=None if store is None else (str(store[0]), int(store[1]))))
    return tuple(processes)


def _lines(file: Path) -> list[str]:
    try:
        with file.open() as text:
            return text.read(_MOST_READ).splitlines()
    except (OSError, ValueError):
        return []


def _path(line: str) -> str:
    try:
        path = json.loads(line)
    except ValueError:  # the last line of a process that was killed
        return ""
    return path if isinstance(path, str) and path.startswith("/") else ""
