"""State of one tune: its launches in the store, their jobs and costs in the journal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchx_cubicml.records.event import TUNER, Event, EventKind
from torchx_cubicml.records.trial import Origin
from torchx_cubicml.tuner.budget import Spent
from torchx_cubicml.tuner.journal import Note, NoteKind
from torchx_cubicml.tuner.lease import Lifetime, launch_prefix
from torchx_cubicml.tuner.scheduler.job_state import JobEnd
from torchx_cubicml.tuner.sharing import ASSIGNED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from torchx_cubicml.advisor import Suggestion
    from torchx_cubicml.records.trial import State, Trial
    from torchx_cubicml.records.values import Workload
    from torchx_cubicml.tuner.journal import Journal
    from torchx_cubicml.tuner.polling import Clock
    from torchx_cubicml.tuner.trials import TrialLog

_AFTER_ALL_OTHERS = 10**9  # sequence number of an end event that the tuner writes in place of the job


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Cost of a launch that is over.

    Args:
        run_s: seconds that its job ran.
        queue_s: seconds that its job waited.
        launched: false if there never was a job.
        devices: world size of the job; 0 if unknown.
    """

    run_s: float
    queue_s: float
    launched: bool = True
    devices: int = 0


class TuneState:
    """State of one tune, kept in the store and its journal.

    Args:
        tune_id: id of the tune.
        trial_log: trials of the store.
        journal: journal of the store.
        clock: clock for the times of events and notes.
    """

    def __init__(self, tune_id: str, trial_log: TrialLog, journal: Journal, clock: Clock) -> None:
        self.trial_log = trial_log
        self.tune_id = tune_id
        self._prefix = launch_prefix(tune_id)
        self._journal = journal
        self._clock = clock
        self._submitted: dict[str, Note] = {}
        self._settled: dict[str, Note] = {}
        self._lifetime = Lifetime()
        self._run_s = 0.0
        self._device_s = 0.0  # of launches of known world size
        self._run_s_of_unknown = 0.0  # of the others
        self._runs_s: list[float] = []  # of launches that succeeded
        self._n_launched = 0
        self._planned: set[str] = set()
        for note in journal.read():
            if note.tune_id == tune_id:
                self._apply(note)
        trial_log.refresh()
        self._planned.update(trial_log.launches(self._prefix))

    def next_launch_id(self) -> str:
        """Return the id of the next launch; it is unique, as only one process at a time leads a tune."""
        numbers = [self.number(launch_id) for launch_id in self._planned]
        return f"{self._prefix}{max(numbers, default=0) + 1:04d}"

    def number(self, launch_id: str) -> int:
        """Return the number of a launch of this tune, from 1."""
        digits = launch_id.removeprefix(self._prefix)
        return int(digits) if digits.isdigit() else 0

    def plan(self, launch_id: str, suggestion: Suggestion, workload: Workload, devices: Sequence[str] = ()) -> None:
        """Write the planned event of a launch to the store, before it has a job.

        Args:
            launch_id: id of the launch.
            suggestion: its config, and the prediction.
            workload: its workload.
            devices: devices of this host that it gets; empty if they are not divided.

        Raises:
            StoreError: the store cannot be written; the launch must not be submitted.
        """
        self._planned.add(launch_id)
        self.trial_log.append(
            Event(
                kind=EventKind.PLANNED,
                launch_id=launch_id,
                writer=TUNER,
                time=self._now(),
                workload=workload,
                config=suggestion.config,
                origin=Origin.TUNE,
                observed={ASSIGNED: ",".join(devices)} if devices else {},
                suggestion=suggestion.promise(),
            )
        )

    def submitted(self, launch_id: str, handle: str, purpose: str, image: str = "") -> None:
        """Write to the journal that a launch has a job."""
        self._write(NoteKind.SUBMITTED, launch_id, {"handle": handle, "purpose": purpose, "image": image})

    def settled(self, launch_id: str, cost: Cost, end: str) -> None:
        """Write to the journal that a launch is over."""
        facts = {"run_s": cost.run_s, "queue_s": cost.queue_s, "launched": cost.launched, "end": end}
        facts |= {"devices": cost.devices} if cost.devices else {}
        self._write(NoteKind.SETTLED, launch_id, facts)

    def alive(self) -> None:
        """Write a heartbeat to the journal."""
        self._write(NoteKind.ALIVE, "", {})

    def hurry(self) -> None:
        """Stop retrying a store that does not answer."""
        self.trial_log.retry.hurry()

    def finished(self, facts: Mapping[str, object]) -> None:
        """Write to the journal that the tune is over, and its result; it is not resumed any more."""
        self._write(NoteKind.FINISHED, "", facts)

    def end(self, launch_id: str, state: State, reason: str) -> None:
        """Write the end event of a launch to the store, in place of its job."""
        trial = self.trial_log.of_launch(launch_id)
        has_no_trial_id = trial is None or trial.trial_id == launch_id
        self.trial_log.append(
            Event(
                kind=EventKind.ENDED,
                trial_id="" if has_no_trial_id or trial is None else trial.trial_id,
                launch_id=launch_id,
                sequence=_AFTER_ALL_OTHERS,
                writer=TUNER,
                time=self._now(),
                state=state,
                reason=reason,
            )
        )
        self.trial_log.refresh()

    def open_launches(self) -> list[str]:
        """Return the ids of the launches that are planned but not settled, in order."""
        return sorted(self._planned - self._settled.keys())

    def handle(self, launch_id: str) -> str:
        """Return the job handle of a launch; empty if the journal has none."""
        note = self._submitted.get(launch_id)
        return note.text("handle") if note is not None else ""

    @property
    def has_submitted(self) -> bool:
        """Return whether a launch of the tune has or had a job."""
        return bool(self._submitted)

    def purpose(self, launch_id: str) -> str:
        """Return the purpose of a launch; empty if the journal has none."""
        note = self._submitted.get(launch_id)
        return note.text("purpose") if note is not None else ""

    def image(self) -> str:
        """Return the image built from the workspace; empty if there is none."""
        return next((image for note in self._submitted.values() if (image := note.text("image"))), "")

    def own_trials(self) -> list[Trial]:
        """Return the trials of this tune in the order of their launches."""
        found = [self.trial_log.of_launch(launch_id) for launch_id in sorted(self._planned)]
        return [trial for trial in found if trial is not None]

    def others(self) -> frozenset[str]:
        """Return the ids of all trials that do not belong to this tune."""
        return frozenset(
            trial.trial_id for trial in self.trial_log.trials() if not trial.launch_id.startswith(self._prefix)
        )

    def settled_trials(self) -> list[Trial]:
        """Return the trials of this tune's launches that are over, in the order of their ends."""
        found = [self.trial_log.of_launch(launch_id) for launch_id in self._settled]
        return [trial for trial in found if trial is not None]

    def spent(self, world_size: int, running_s: Sequence[float] = (), running_on: Sequence[int] = ()) -> Spent:
        """Return the resources spent; a launch in flight counts the mean of settled ones, or its own time if longer.

        Args:
            world_size: world size of a settled launch whose own is unknown; before one has settled, that of any other.
            running_s: run time in seconds of each launch in flight that runs.
            running_on: their world sizes, 0 where unknown; by default all are. Such a launch counts as the mean of
                settled ones, and so does one that waits.
        """
        mean_s = self._run_s / self._n_launched if self._n_launched else 0.0
        in_flight = len(self._planned) - len(self._settled)
        waiting = max(0, in_flight - len(running_s))
        devices = self.device_hours(world_size) * 3600 / self._run_s if self._run_s else world_size
        sizes = [size or devices for size in running_on or [0] * len(running_s)]
        running = list(zip(running_s, sizes, strict=True))
        expected_s = mean_s * waiting * devices + sum(max(mean_s, each) * size for each, size in running)
        used_s = sum(each * size for each, size in running)
        return Spent(
            launches=self._n_launched + in_flight,
            device_hours=self.device_hours(world_size) + expected_s / 3600,
            used_device_hours=self.device_hours(world_size) + used_s / 3600,
            hours=self._lifetime.hours(self._clock.now()),
            launch_hours=mean_s / 3600,
            launch_device_hours=mean_s / 3600 * devices,
        )

    def usual_run_s(self) -> tuple[float, float] | None:
        """Return the shortest and the longest run time of launches that succeeded; ``None`` before the first."""
        return (min(self._runs_s), max(self._runs_s)) if self._runs_s else None

    def device_hours(self, world_size: int) -> float:
        """Return the device hours of the launches that are over; ``world_size`` is that of one whose own is unknown."""
        return (self._device_s + self._run_s_of_unknown * world_size) / 3600

    def _write(self, kind: NoteKind, launch_id: str, facts: Mapping[str, object]) -> None:
        note = Note(kind=kind, tune_id=self.tune_id, launch_id=launch_id, time=self._now(), facts=facts)
        self._journal.write(note)
        self._apply(note)

    def _apply(self, note: Note) -> None:
        """Update the state from one note of this tune."""
        self._lifetime.take(note)
        if note.kind is NoteKind.SUBMITTED:
            self._submitted[note.launch_id] = note
        if note.kind is NoteKind.SETTLED:
            self._settled[note.launch_id] = note
            self._run_s += note.number("run_s")
            devices = note.number("devices")
            self._device_s += note.number("run_s") * devices
            self._run_s_of_unknown += 0.0 if devices else note.number("run_s")
            if note.text("end") == JobEnd.SUCCEEDED:
                self._runs_s.append(note.number("run_s"))
            self._n_launched += note.facts.get("launched") is not False

    def now(self) -> datetime:
        """Return the time by the tune's clock."""
        return self._clock.now()

    def _now(self) -> str:
        return self._clock.now().isoformat(timespec="milliseconds")
