"""Reporter of this process: builds events from its observations and sends them to the writer process."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

from torchx_cubicml.errors import StoreError
from torchx_cubicml.recorder.events.failures import at_time_limit
from torchx_cubicml.recorder.events.printed_trials import PRINTED_MARK
from torchx_cubicml.recorder.events.sender import EventSender
from torchx_cubicml.recorder.own_ranks.rank_starter import LAST_SEQUENCE
from torchx_cubicml.recorder.process.console import notice, warn
from torchx_cubicml.recorder.process.repeatable_command import repeatable_command
from torchx_cubicml.records.event import MEASURED_TRAINING, Event, EventKind
from torchx_cubicml.records.iso_time import time_now
from torchx_cubicml.records.resumption import FOLDER_FACTS
from torchx_cubicml.records.shell_words import shell_word
from torchx_cubicml.records.trial import short_id
from torchx_cubicml.settings import PRINT_TRIAL, default_store_url, is_on, option
from torchx_cubicml.store.lasting import may_end_with_job
from torchx_cubicml.store.obstacle import write_obstacle

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchx_cubicml.recorder.process.assignment import Assignment
    from torchx_cubicml.records.measurement import Measurement
    from torchx_cubicml.records.trial import State
    from torchx_cubicml.records.values import Value

_WIDTH = 82  # of a line without the name of the package, from which the command has a line of its own
_PARTLY = "only partly recorded"
_ENDS_WITH_JOB = "the store may end with this job, so the line above holds the trial, too"


class Reporter:
    """Sequence of events of one process about one trial.

    Args:
        assignment: job, contract and store of this recording.
        trial_id: trial that this process is part of.

    Raises:
        OSError: the writer process cannot be started.
    """

    def __init__(self, assignment: Assignment, trial_id: str) -> None:
        self._assignment = assignment
        self._trial_id = trial_id
        self._at_start: dict[str, Value] = {}
        self._observed: dict[str, Value] = {}
        self._measurement: Measurement | None = None
        starter = assignment.starter
        self._sequence = starter.first_sequence() if starter is not None else 0
        self._end: Event | None = None
        self._warned = ""
        self._is_starter = False
        self._obstacle = write_obstacle(assignment.contract.store)
        job = assignment.job
        self._sender = EventSender(
            assignment.contract.store,
            deadline_s=assignment.write_deadline_s,
            stderr=job.stderr_file,
            ends_at=job.ends_at,
            command=_command(assignment),
            # All ranks that a process starts itself are its descendants.
            pid=starter.pid if starter is not None else os.getpid(),
            world_size=job.world_size if starter is None else 1,
        )

    def started(self, observed: Mapping[str, Value]) -> None:
        """Send the event that the program is about to run, and print where it is recorded if nobody has."""
        self._at_start = dict(observed)
        self.learn(observed, None)
        self._send(EventKind.STARTED)
        self._announce()

    def learn(self, observed: Mapping[str, Value], measurement: Measurement | None) -> None:
        """Store observations for the next event; facts of a training that is no longer the reported one are dropped."""
        if observed and observed.get(MEASURED_TRAINING) != self._observed.get(MEASURED_TRAINING):
            self._observed, self._measurement = dict(self._at_start), None
        self._observed.update(observed)
        self._measurement = measurement or self._measurement

    def measured(self) -> None:
        """Send the observations so far."""
        self._send(EventKind.MEASURED)
        problem = self._sender.problem()
        if problem and not self._warned and not self._obstacle:
            self._warned = _PARTLY if self._sender.has_written else "not recorded so far"
            warn(f"this launch is {self._warned}: {problem}")

    def ended(self, state: State, reason: str, *, is_starter: bool = False) -> None:
        """Send the end of the program; only the first call counts.

        Args:
            state: state in which it ended.
            reason: cause of the end.
            is_starter: whether the program's ranks are other processes, so that their facts and causes come first.
        """
        if self._end is None:
            facts, sequence = self._observed, self._sequence
            if is_starter:
                self._send(EventKind.MEASURED)
                self._observed, self._sequence = {}, LAST_SEQUENCE
                self._is_starter = True
            state, reason = at_time_limit(state, reason, ends_at=self._assignment.job.ends_at, now=time.time())
            end = self._send(EventKind.ENDED, state=state, reason=reason)
            # The printed line is the only one of this process, so it holds the facts, which those of ranks replace.
            # Only the writer has the key of the store, by which it makes digests of the folders.
            printed = {name: value for name, value in facts.items() if name not in FOLDER_FACTS}
            self._end = replace(end, observed=printed, sequence=sequence)

    def close(self) -> None:
        """Wait for the store within the deadline; if this process leads, print the outcome.

        A trial that may be lost is printed, too.
        """
        problem = self._sender.close()
        if not self._sender.has_written:
            what = "this launch" if self._assignment.leads else f"the end of rank {self._assignment.job.rank}"
            warn(f"{what} was not recorded: {problem or 'nothing was written'}")
        elif problem and self._warned != _PARTLY:
            warn(f"this launch is {_PARTLY}: {problem}")
        if self._end is None or not self._assignment.leads:
            return
        is_recorded, ends_with_job = self._sender.has_written and not problem, self._may_end_with_job()
        if ends_with_job or not is_recorded or is_on(option(PRINT_TRIAL)):
            line = json.dumps(self._end.to_json(), separators=(",", ":"))
            sys.stderr.write(f"{PRINTED_MARK} {line}\n")
            sys.stderr.flush()
        if is_recorded and not self._is_starter and (outcome := self._sender.outcome):  # of ranks, rank 0 tells it
            then = _ENDS_WITH_JOB if ends_with_job else self._how_to_show()
            is_long = " --store " in then and len(outcome) + len(then) > _WIDTH
            for line in (outcome, then) if is_long else (f"{outcome}; {then}",):
                notice(line)

    def abandon(self) -> None:
        """Close the sender in a forked child."""
        self._sender.abandon()

    def _may_end_with_job(self) -> bool:
        """Return whether the store may be gone after the job."""
        job, contract = self._assignment.job, self._assignment.contract
        return self._runs_elsewhere() and may_end_with_job(contract.store, temporary=job.temporary)

    def _how_to_show(self) -> str:
        """Return the command that shows the trial, or its id where TorchX is not installed."""
        store = self._assignment.contract.store
        try:
            has_torchx = find_spec("torchx") is not None
        except (ImportError, ValueError):  # a module of that name without a spec
            has_torchx = False
        if not has_torchx:
            return f"trial {short_id(self._trial_id)}"
        words = [short_id(self._trial_id)]
        if store != _default_store():
            words += ["--store", store]
        return f"torchx cubicml history show {' '.join(map(shell_word, words))}"

    def _runs_elsewhere(self) -> bool:
        """Return whether this is a job of a cluster, not a process of the machine that launched it."""
        scheduler = self._assignment.contract.scheduler if self._assignment.declared else ""
        if not scheduler:
            return self._assignment.job.is_batch_job
        from torchx_cubicml.launch.scheduler import is_on_this_machine  # loads much, and is asked at the end

        return not is_on_this_machine(scheduler)

    def _announce(self) -> None:
        """Print the place of the record, or the reason why there is none, unless the launcher has done so."""
        contract, is_declared = self._assignment.contract, self._assignment.declared
        if not self._obstacle:
            if not is_declared:
                notice(f"recording to {contract.store}")
            return
        from torchx_cubicml.launch.scheduler import is_on_this_machine  # loads much, and is seldom asked

        if not is_declared or (contract.scheduler and not is_on_this_machine(contract.scheduler)):
            warn(f"this launch will not be recorded: {self._obstacle}")

    def _send(self, kind: EventKind, *, state: State | None = None, reason: str = "") -> Event:
        contract = self._assignment.contract
        event = Event(
            kind=kind,
            trial_id=self._trial_id,
            launch_id=contract.launch_id,
            attempt=self._assignment.job.attempt,
            sequence=self._sequence,
            writer=f"rank{self._assignment.job.rank}",
            time=time_now(),
            workload=contract.workload,
            config=contract.config,
            origin=contract.origin,
            observed=dict(self._observed),
            measurement=self._measurement,
            state=state,
            reason=reason,
            suggestion=contract.suggestion,
            provenance=contract.provenance if kind is EventKind.STARTED else {},
        )
        self._sequence += 1
        self._sender.send(event.to_json())
        return event


def _default_store() -> str:
    try:
        return default_store_url()
    except StoreError:  # no home directory
        return ""


def _command(assignment: Assignment) -> dict[str, object] | None:
    program = assignment.program
    if program is None or not assignment.leads or assignment.starter is not None:
        return None
    return {
        "name": program.name,
        "is_module": program.is_module,
        "arguments": program.arguments,
        "variables": assignment.contract.variables if assignment.declared else None,
        "launched": assignment.contract.program,
        "kept": repeatable_command(assignment),
    }
