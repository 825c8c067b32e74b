"""Lease of a tune: a process leads a new tune, or resumes an unfinished one whose process died.

On one machine, a file lock that the kernel releases shows whether a tune's process is alive. From another machine, the
process counts as alive for a while after its last note in the journal.
"""

from __future__ import annotations

import fcntl
import getpass
import hashlib
import json
import os
import tempfile
from contextlib import suppress
from dataclasses import astuple, dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Self

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.records.iso_time import parse_time
from torchx_cubicml.records.trial import new_id
from torchx_cubicml.tuner.journal import Note, NoteKind

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from torchx_cubicml.tuner.journal import Journal
    from torchx_cubicml.tuner.polling import Clock
    from torchx_cubicml.tuner.request import TuneRequest

ALIVE_EVERY_S = 60.0
_SILENT_FOR = timedelta(seconds=10 * ALIVE_EVERY_S)


@dataclass(slots=True)
class Lease:
    """Lease of a tune, held by this process until it closes the lease or dies.

    Args:
        tune_id: id of the tune.
        resumed: true if another process began the tune.
        lock: descriptor of the locked file.
    """

    tune_id: str
    resumed: bool
    lock: int

    def close(self) -> None:
        """Release the lease, so that another process can take it."""
        with suppress(OSError):
            os.close(self.lock)

    @classmethod
    def take(cls, journal: Journal, request: TuneRequest, clock: Clock, *, space_text: str) -> Self:
        """Take the lease of the latest unfinished tune of the same request whose process is dead, else of a new one.

        Raises:
            LaunchError: the lock file cannot be created.
            StoreError: the journal cannot be read or written.
        """
        request_digest = digest(request, space_text)
        for tune_id, notes in reversed(_unfinished(journal.read(), request_digest).items()):
            lock = None if request.fresh or _is_alive_elsewhere(notes, clock.now()) else _lock(tune_id)
            if lock is not None:
                lease = cls(tune_id, resumed=True, lock=lock)
                break
        else:
            tune_id = new_id("tune")
            lock = _lock(tune_id)
            if lock is None:
                raise LaunchError(f"cannot lock {_lock_folder() / tune_id}")
            lease = cls(tune_id, resumed=False, lock=lock)
        facts = {"request": request_digest, "host": _host(), "user": _user(), "budget": str(request.budget)}
        journal.write(Note(kind=NoteKind.BEGUN, tune_id=lease.tune_id, time=clock.now().isoformat(), facts=facts))
        return lease


def launch_prefix(tune_id: str) -> str:
    """Return the prefix of the ids of a tune's launches.

    >>> launch_prefix("tune-9f2c61d07e1b4a55")
    'launch-9f2c61d07e1b4a55-'
    """
    return f"launch-{tune_id.removeprefix('tune-')}-"


def digest(request: TuneRequest, space_text: str) -> str:
    """Return a digest that is equal for requests of the same tune.

    Budgets and timeouts may differ between them. What a launch measures and how launches are chosen may not.
    """
    same = [request.component, request.component_args, space_text, request.scheduler, request.scheduler_args]
    return hashlib.sha256(
        json.dumps([*same, request.step_limit, astuple(request.method), str(Path.cwd()), _user()]).encode()
    ).hexdigest()[:32]


class Lifetime:
    """Total lifetime of the processes of a tune, each from its start to its last note."""

    def __init__(self) -> None:
        self._earlier_s = 0.0
        self._begun: datetime | None = None
        self._last: datetime | None = None

    def take(self, note: Note) -> None:
        """Add one note; notes must come in order of time."""
        time = parse_time(note.time)
        if time is None:
            return
        if note.kind is NoteKind.BEGUN:
            self._earlier_s, self._begun = self.hours() * 3600, time
        self._last = time

    def hours(self, now: datetime | None = None) -> float:
        """Return the lifetime in hours, up to the last note or, if given, ``now``."""
        if self._begun is None:
            return 0.0
        last = now or self._last or self._begun
        return (self._earlier_s + max(0.0, (last - self._begun).total_seconds())) / 3600


def _unfinished(notes: Sequence[Note], request_digest: str) -> dict[str, list[Note]]:
    """Return tune id -> notes of the unfinished tunes with the given digest of their request."""
    tunes: dict[str, list[Note]] = {}
    for note in notes:
        if note.kind is NoteKind.BEGUN and note.text("request") == request_digest:
            tunes.setdefault(note.tune_id, [])
    for note in notes:
        if note.tune_id in tunes:
            tunes[note.tune_id].append(note)
    return {name: own for name, own in tunes.items() if all(note.kind is not NoteKind.FINISHED for note in own)}


def _is_alive_elsewhere(notes: Sequence[Note], now: datetime) -> bool:
    """Return whether a tune's process is on another machine and wrote a note recently."""
    begun = [note for note in notes if note.kind is NoteKind.BEGUN]
    if not begun or begun[-1].text("host") == _host():
        return False
    last = max((time for note in notes if (time := parse_time(note.time)) is not None), default=None)
    return last is not None and now - last < _SILENT_FOR


def _lock(tune_id: str) -> int | None:
    """Lock a tune's file and return its descriptor; ``None`` if another process has locked it."""
    folder = _lock_folder()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(folder / tune_id, os.O_CREAT | os.O_RDWR, 0o600)
    except OSError as error:
        raise LaunchError(f"cannot create a lock file in {folder}: {error}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return lock


def _lock_folder() -> Path:
    return Path(tempfile.gettempdir()) / f"torchx-cubicml-{_user()}" / "locks"


def _user() -> str:
    return getpass.getuser()


def _host() -> str:
    with suppress(OSError):
        return f"{os.uname().nodename} {Path('/proc/sys/kernel/random/boot_id').read_text().strip()}"
    return os.uname().nodename
