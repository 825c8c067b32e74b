"""Writer process: reads events from its standard input and appends them to the store.

It runs in its own session and imports no torch. It outlives the training process by at most its deadline. If that
process ends without an end event, the writer closes the trial.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import threading
import time
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from torchx_cubicml.errors import CubicMLError, RecordError
from torchx_cubicml.host_memory import count_oom_kills
from torchx_cubicml.recorder.events.crash_trace import read_tail, read_words, state_from_crash_trace
from torchx_cubicml.recorder.events.failures import at_time_limit
from torchx_cubicml.recorder.events.launch_provenance import with_provenance
from torchx_cubicml.recorder.events.outcome import outcome_text
from torchx_cubicml.recorder.events.recorded_command import RecordedCommand
from torchx_cubicml.recorder.events.restart_cause import RESTART_CAUSE, restart_cause
from torchx_cubicml.recorder.events.sender import CRASH_TRACE_FD, DONE, OUTCOME, WRITTEN
from torchx_cubicml.recorder.host.load import HostLoad
from torchx_cubicml.records.arguments import text_digest
from torchx_cubicml.records.event import Event, EventKind
from torchx_cubicml.records.iso_time import time_now
from torchx_cubicml.records.redaction import mask
from torchx_cubicml.records.resumption import FOLDER_FACTS
from torchx_cubicml.records.trial import State
from torchx_cubicml.settings import read_job_environment
from torchx_cubicml.store import TrialStore
from torchx_cubicml.store.digest_key import made_digest_key

if TYPE_CHECKING:
    from collections.abc import Iterator

KILLED_BY_HOST = (
    "the process sent no end event; the host or the job ran out of memory, and processes of this launch were killed"
)
NO_END_EVENT = "the process sent no end event: killed by a signal, or ended by native code"


class EventWriter:
    """Writer of events to one store, in a background thread, which may hang without harm.

    Args:
        connection: socket to the training process, for the first problem and the outcome.
        store: URL of the store.
        stderr: file in which torchrun keeps the stderr of the training process; empty without.
        last_words: memory file with the crash trace of the training process; ``None`` without.
        ends_at: time at which the scheduler ends the job, in seconds since 1970; 0 where unknown.
        command: command of the program; ``None`` where it is not recorded.
        load: load of this host beside the job; ``None`` if it is not recorded.
    """

    def __init__(  # noqa: PLR0913 - each names one part of the training process
        self,
        connection: socket.socket,
        store: str,
        *,
        stderr: str = "",
        last_words: int | None = None,
        ends_at: float = 0,
        command: RecordedCommand | None = None,
        load: HostLoad | None = None,
    ) -> None:
        self._load = load
        self._command = command
        self._ends_at = ends_at
        self._stderr = stderr
        self._trace_file = last_words
        self._connection = connection
        self._store = store
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._failed = False
        self._last: Event | None = None
        self._oom_kills = count_oom_kills()
        self._thread = threading.Thread(target=self._append_all, daemon=True)
        self._thread.start()

    def take(self, line: bytes) -> None:
        """Queue the event in one line for writing."""
        try:
            event = Event.from_json(json.loads(line))
        except ValueError as error:
            self._report_once(f"an event was not written: {error}")
            return
        event = self._with_load(event)
        if self._last is None or self._last.kind is not EventKind.ENDED:
            self._last = event
        self._events.put(event)

    def close(self, *, deadline_s: float) -> None:
        """Close the trial if it has no end event, and wait for the store until the deadline."""
        if self._last is not None and self._last.kind is not EventKind.ENDED:
            end = (
                (State.OUT_OF_MEMORY, KILLED_BY_HOST) if self._host_killed_processes() else self._traced_end(self._last)
            )
            self._events.put(closing_event(self._last, *end))
        self._events.put(None)
        self._thread.join(deadline_s)
        if self._thread.is_alive():
            self._report_once(f"the store did not answer within {deadline_s:.3g} s")
        self._send(DONE)

    def _with_load(self, event: Event) -> Event:
        if self._load is None:
            return event
        try:
            return replace(event, observed={**event.observed, **self._load.facts(event)})
        except Exception:  # noqa: BLE001 - a file of the kernel may hold anything; the event itself is written
            self._load = None
            return event

    def _traced_end(self, last: Event) -> tuple[State, str]:
        trace = read_words(self._trace_file) if self._trace_file is not None else ""
        stderr = read_tail(self._stderr) if trace and self._stderr else ""
        end = state_from_crash_trace(trace, stderr, backend=last.observed.get("backend"))
        if end is None:
            return State.UNKNOWN, NO_END_EVENT
        return at_time_limit(end[0], mask(end[1]), ends_at=self._ends_at, now=time.time())

    def _host_killed_processes(self) -> bool:
        now = count_oom_kills()
        return now is not None and self._oom_kills is not None and now > self._oom_kills

    def _append_all(self) -> None:
        store: TrialStore | None = None
        has_written = False
        while (event := self._events.get()) is not None:
            try:
                store = store or TrialStore(self._store)
                self._append(store, event)
                if not has_written:
                    has_written = True
                    self._send(WRITTEN)
                if event.kind is EventKind.ENDED:
                    self._report_outcome(event)
            except Exception as error:  # noqa: BLE001 - a file system may raise anything; the next event may succeed
                own = isinstance(error, CubicMLError)  # its text says all
                self._report_once(str(error) if own else f"{type(error).__name__}: {error}")

    def _append(self, store: TrialStore, event: Event) -> None:
        """Append an event; without its command if no reader would accept it with that."""
        event = _with_restart_cause(self._with_provenance(self._with_digested_folders(event)))
        full = self._with_command(event)
        try:
            store.append(full)
        except RecordError:
            if full is event:
                raise
            store.append(event)

    @cached_property
    def _digest_key(self) -> str:
        return made_digest_key(self._store)

    def _with_digested_folders(self, event: Event) -> Event:
        """Return an event with the digests of its folders under the key of the store; without them if it has none."""
        found = {name: ids for name in FOLDER_FACTS if isinstance(ids := event.observed.get(name), tuple)}
        others = {name: value for name, value in event.observed.items() if name not in FOLDER_FACTS}
        with suppress(Exception):  # as above
            others |= {name: tuple(text_digest(str(each), self._digest_key) for each in found[name]) for name in found}
        return replace(event, observed=others)

    def _with_provenance(self, event: Event) -> Event:
        """Return the first event of a launch with its provenance; unchanged if that fails."""
        if event.kind is not EventKind.STARTED:
            return event
        program = self._command.path if self._command is not None else None
        try:
            return with_provenance(event, program, self._digest_key)
        except Exception:  # noqa: BLE001 - as above; the launch itself is recorded
            return event

    def _with_command(self, event: Event) -> Event:
        """Return the first event of a launch with its command; unchanged if there is no key for its digests."""
        if self._command is None or event.kind is not EventKind.STARTED:
            return event
        try:
            return self._command.recorded_in(event, self._digest_key)
        except Exception:  # noqa: BLE001 - as above; the launch itself is recorded
            return event

    def _report_outcome(self, end: Event) -> None:
        with suppress(Exception):  # the event is in the store; the line about it is for people
            self._send(OUTCOME + f"{outcome_text(end)}\n".encode())

    def _report_once(self, problem: str) -> None:
        if self._failed:
            return
        self._failed = True
        self._send(f"{' '.join(mask(problem).split())[:2000]}\n".encode())

    def _send(self, line: bytes) -> None:
        try:
            self._connection.sendall(line)
        except OSError:
            return  # the training process has ended


def _with_restart_cause(event: Event) -> Event:
    """Return the first event of a Slurm job's later run with the cause of its restart; unchanged if none is known."""
    job = read_job_environment().scheduler_job_id.removeprefix("slurm-")
    if event.kind is not EventKind.STARTED or not event.attempt[0] or not job:
        return event
    cause = restart_cause(job)
    return replace(event, observed={**event.observed, RESTART_CAUSE: cause}) if cause else event


def closing_event(last: Event, state: State = State.UNKNOWN, reason: str = NO_END_EVENT) -> Event:
    """Return the end event of a trial whose process sent none after the event ``last``."""
    return replace(
        last,
        kind=EventKind.ENDED,
        sequence=last.sequence + 1,
        time=time_now(),
        state=state,
        reason=reason,
    )


def read_lines(connection: socket.socket) -> Iterator[bytes]:
    """Yield the lines received until the other side closes; drop an unfinished last line."""
    rest = b""
    while received := _receive(connection):
        *lines, rest = (rest + received).split(b"\n")
        yield from lines


def main() -> None:
    """Serve the training process at the other end of standard input until it ends."""
    connection = socket.socket(fileno=os.dup(0))
    os.close(0)
    lines = read_lines(connection)
    setup = json.loads(next(lines))
    trace = CRASH_TRACE_FD if setup.get("has_last_words") else None
    writer = EventWriter(
        connection,
        setup["store"],
        stderr=setup.get("stderr", ""),
        last_words=trace,
        ends_at=setup.get("ends_at", 0),
        command=RecordedCommand.from_json(setup["command"]) if setup.get("command") else None,
        load=HostLoad(setup["pid"], world_size=setup.get("world_size", 1)) if "pid" in setup else None,
    )
    for line in lines:
        writer.take(line)
    writer.close(deadline_s=setup["deadline_s"])
    os._exit(0)  # does not wait for a hanging store


def _receive(connection: socket.socket) -> bytes:
    try:
        return connection.recv(65536)
    except ConnectionError:
        return b""
