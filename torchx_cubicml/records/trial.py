"""Trial: the record of one launch, with its workload, config, outcome and measured throughput.

A trial is the fold of its events (``event.fold_events``).
"""

from __future__ import annotations

import math
import os
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Self

from torchx_cubicml.errors import RecordError
from torchx_cubicml.records.device_prices import PRICE, Prices
from torchx_cubicml.records.iso_time import parse_time
from torchx_cubicml.records.measurement import Measurement
from torchx_cubicml.records.objective_units import PER_COST, RATES, SOONEST_DONE, counted_rate, in_unit
from torchx_cubicml.records.provenance import Trust
from torchx_cubicml.records.values import Config, Value, Workload, display, freeze_values, is_count

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchx_cubicml.records.job_time import TimedJob

SECOND_ATTEMPT_SUFFIX = "-as-typed"  # of the trial id of a job that runs as typed after its rewritten command failed
_RANDOM_LETTERS = 10  # of the last part of a trial id from which no other trial has the same
_NOT_SHOWN = frozenset({"trial_id", "arguments", "digests", "timed"})  # in the table of a notebook


class State(StrEnum):
    """State of a trial; a closed set."""

    PLANNED = "planned"
    RUNNING = "running"
    COMPLETED = "completed"
    STOPPED_EARLY = "stopped_early"
    OUT_OF_MEMORY = "out_of_memory"
    TIMEOUT = "timeout"
    INFRASTRUCTURE = "infrastructure"
    USER_ERROR = "user_error"
    UNKNOWN = "unknown"

    @property
    def ended(self) -> bool:
        """Return whether the trial has ended: no further event is expected."""
        return self not in {State.PLANNED, State.RUNNING}


class Origin(StrEnum):
    """Source of a trial's config."""

    USER = "user"
    REWRITE = "rewrite"
    EXPLORE = "explore"
    TUNE = "tune"
    IMPORT = "import"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Record of one launch.

    Args:
        trial_id: unique name of the trial.
        workload: facts fixed for the launch: program, world size, and those that the space file declares.
        config: requested config.
        state: state of the launch.
        observed: facts observed inside the job, under their standard names.
        measurement: measurement of the last attempt that reached steady state; ``None`` where there is none.
        origin: source of the config.
        launch_id: joins the trial with the ``planned`` event of ``tune``; empty for other launches.
        attempts: number of attempts with an event, >= 1.
        reason: cause of the end, in words; may be empty.
        suggestion: prediction made for the config.
        arguments: of the program, as ``digested_arguments``; ``None`` where unknown.
        digests: name -> keyed digest of the other texts of the command: ``program`` (the code of its file),
            ``program:NAME`` (a constant in it, or the default of a flag), ``launched`` (the file as the launcher read
            it), ``key`` (the key itself), ``$NAME`` (an environment variable) and ``--flag:key`` (a key of a named
            config file); ``None`` where unknown.
        provenance: source of the record, under ``PROVENANCE_NAMES``; empty where unknown.
        command: the command that ran, where the user keeps it: its ``words``, and what no word states, such as
            ``hook fsdp``; else empty.
        trust: trust level of the store that the trial came from; the lowest of its events.
        started_at: time of the earliest event before the end, ISO 8601 in UTC; for people, never for ordering.
        ended_at: time of the latest end of an ended trial, likewise; empty before.
        crowding: log slowdown that others on its host may have caused, which its ``uncertainty`` contains; set by
            ``with_crowding``, never recorded.
        timed: job whose time the objective ``soonest_done`` compares; set by the advisor, never recorded.
    """

    trial_id: str
    workload: Workload
    config: Config
    state: State
    observed: Mapping[str, Value] = field(default_factory=dict)
    measurement: Measurement | None = None
    origin: Origin = Origin.USER
    launch_id: str = ""
    attempts: int = 1
    reason: str = ""
    suggestion: Mapping[str, object] | None = None
    arguments: tuple[str, ...] | None = None
    digests: Mapping[str, str] | None = None
    provenance: Mapping[str, Value] = field(default_factory=dict)
    command: Mapping[str, Value] = field(default_factory=dict)
    trust: Trust = Trust.OWN
    started_at: str = ""
    ended_at: str = ""
    crowding: float | None = None
    timed: TimedJob | None = None

    def __post_init__(self) -> None:
        if not self.trial_id:
            raise RecordError("a trial needs a trial_id")
        if not is_count(self.attempts) or self.attempts < 1:
            raise RecordError(f"attempts must be a whole number >= 1, got {display(self.attempts)}")
        if self.state is State.PLANNED and self.attempts > 1:
            raise RecordError(f"a planned trial cannot have {self.attempts} attempts")

    @classmethod
    def completed(
        cls,
        *,
        workload: Workload,
        config: Config,
        tokens_per_second: float | None = None,
        samples_per_second: float | None = None,
        peak_memory_gib: float | None = None,
    ) -> Self:
        """Return a completed trial with a throughput measured elsewhere.

        Raises:
            RecordError: no throughput is given, or a value is not legal.

        >>> Trial.completed(workload={"n_layers": 2}, config={"tp_degree": 1}, tokens_per_second=41_000.0).state
        <State.COMPLETED: 'completed'>
        """
        if tokens_per_second is None and samples_per_second is None:
            raise RecordError(f"a completed trial needs a throughput: {' or '.join(RATES)}")
        return cls(
            trial_id=new_id("import"),
            workload=freeze_values(workload, where="workload"),
            config=freeze_values(config, where="config"),
            state=State.COMPLETED,
            measurement=Measurement(
                tokens_per_second=tokens_per_second,
                samples_per_second=samples_per_second,
                peak_memory_gib=peak_memory_gib,
            ),
            origin=Origin.IMPORT,
        )

    @classmethod
    def infeasible(cls, *, workload: Workload, config: Config, reason: str = "out_of_memory") -> Self:
        """Return a trial that could not run, with the failure as its state.

        Raises:
            RecordError: ``reason`` is not a state of failure, or a value is not legal.
        """
        failures = [state for state in State if state.ended and state is not State.COMPLETED]
        if reason not in failures:
            raise RecordError(f"unknown reason {reason!r}; choose from {', '.join(failures)}")
        return cls(
            trial_id=new_id("import"),
            workload=freeze_values(workload, where="workload"),
            config=freeze_values(config, where="config"),
            state=State(reason),
            origin=Origin.IMPORT,
        )

    def at(self, statistic: str) -> Trial:
        """Return this trial with its throughput at another statistic of the steps; see ``Measurement.at``.

        Raises:
            RecordError: ``statistic`` is not one of ``STATISTICS``.
        """
        measurement = self.measurement.at(statistic) if self.measurement is not None else None
        return self if measurement is self.measurement else replace(self, measurement=measurement)

    def priced(self, prices: Prices | None) -> Trial:
        """Return this trial with the price of its device hour as an observed fact, if that is known."""
        price = prices.price(self.fact(prices.name)) if prices is not None else None
        return self if price is None else replace(self, observed={**self.observed, PRICE: price})

    def throughput(self, objective: str) -> float | None:
        """Return the throughput in the unit of ``objective``; ``None`` where it, or what the job costs, is unknown.

        Raises:
            RecordError: ``objective`` is none of ``OBJECTIVES``, ``PER_COST`` and ``SOONEST_DONE``.
        """
        if objective == SOONEST_DONE:
            return None if self.timed is None else self.timed.pace(self._rate_of_job)
        measured = self.measurement
        rate = measured.throughput(counted_rate(objective)) if measured is not None else None
        if measured is None or rate is None or objective not in PER_COST:
            return rate
        # A single process may have started the other ranks itself.
        devices, price = self.observed.get("world_size", self.fact("world_size")), self.fact(PRICE)
        return in_unit(objective, rate, devices=devices, price=price, power=measured.power)

    @property
    def time_to_done(self) -> Mapping[str, float]:
        """Seconds of each part until the job is done; empty without a job or a measurement."""
        return {} if self.timed is None or self.measurement is None else self.timed.parts(self._rate_of_job)

    @property
    def _rate_of_job(self) -> float | None:
        job = self.timed.job if self.timed is not None else None
        return None if job is None or self.measurement is None else self.measurement.throughput(job.rate)

    @property
    def measured_at(self) -> float:
        """Seconds from 1970 to the end of the measurement; NaN where unknown."""
        time = parse_time(self.ended_at or self.started_at)
        return time.timestamp() if time is not None else math.nan

    def uncertainty(self, objective: str) -> float:
        """Return the standard deviation of the logarithm of ``throughput``, as the run itself reported it.

        The overheads of a job are taken as exact.
        """
        return 0.0 if self.measurement is None else self._share(objective) * self.measurement.uncertainty

    def load(self, objective: str) -> float:
        """Return the part of ``uncertainty`` that others on its host may have caused."""
        return 0.0 if self.measurement is None else self._share(objective) * (self.crowding or 0.0)

    def _share(self, objective: str) -> float:
        return self.timed.share_of_steps(self._rate_of_job) if objective == SOONEST_DONE and self.timed else 1.0

    def _repr_html_(self) -> str:
        """Return all that is recorded but digests, for a notebook."""
        from torchx_cubicml.records.notebook import fact_rows, section_html, table_html

        measurement = asdict(self.measurement) if self.measurement is not None else {}
        groups = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in _NOT_SHOWN}
        rows = fact_rows({**groups, "measurement": measurement})
        return section_html(f"Trial {short_id(self.trial_id)}", table_html((), rows))

    def fact(self, name: str) -> Value | None:
        """Return the value of ``name``: from the workload, else observed, else requested; ``None`` if unknown."""
        for source in (self.workload, self.observed, self.config):
            if name in source:
                return source[name]
        return None


def short_id(trial_id: str) -> str:
    """Return the name of a trial for people: the last part of its id if that is random, else the whole id.

    >>> short_id("local_cwd-train-bk3wbd6d4p"), short_id("slurm-hpc-1234567")
    ('bk3wbd6d4p', 'slurm-hpc-1234567')
    """
    ending = trial_id.rpartition("-")[2]
    is_random = len(ending) >= _RANDOM_LETTERS and not ending.isdecimal() and not ending.isalpha()
    return ending if is_random else trial_id


def new_id(prefix: str) -> str:
    """Return a globally unique, readable name such as ``import-9f2c61d07e1b4a55``."""
    return f"{prefix}-{os.urandom(8).hex()}"
