"""Trial: the record of one launch, with its workload, config, outcome and measured throughput.

A trial is the fold of its events (``event.fold_events``).
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Self, TypeAlias, TypeGuard

from torchx_cubicml.errors import RecordError
from torchx_cubicml.records.device_prices import PRICE, Prices
from torchx_cubicml.records.objective_units import OBJECTIVES, PER_COST, RATES, SOONEST_DONE, counted_rate, in_unit
from torchx_cubicml.records.provenance import Trust

if TYPE_CHECKING:
    from torchx_cubicml.records.job_time import TimedJob

Scalar: TypeAlias = bool | int | float | str
Value: TypeAlias = Scalar | tuple[Scalar, ...]
Config: TypeAlias = Mapping[str, Value]
Workload: TypeAlias = Mapping[str, Value]

SECOND_ATTEMPT_SUFFIX = "-as-typed"  # of the trial id of a job that runs as typed after its rewritten command failed
MAX_TEXT = 4096  # characters of one value; a longer one is an accident or an attack
MAX_ITEMS = 4096  # entries of one tuple; well above the layers of the deepest models
MAX_NAMES = 512  # facts of one trial
MEAN, MEDIAN = "mean", "p50"
STATISTICS = (MEAN, MEDIAN, "p10", "p90")  # of the step times of a launch; each gives a throughput
_STEP_TIME_INDEX = {"p90": 0, MEDIAN: 1, "p10": 2}  # index in ``step_time_s``: a high throughput is a short step
_POSITIVE = (
    "tokens_per_second",
    "samples_per_second",
    "peak_memory_gib",
    "mean_step_time_s",
    "peak_reserved_gib",
    "tokens_per_second_overall",
    "samples_per_second_overall",
    "other_tokens_per_second",
    "other_samples_per_second",
    "power_watts",
    "stated_mfu",
)
_NOT_NEGATIVE = ("relative_error", "evaluation_s", "checkpoint_s", "startup_s", "compile_s", "warmup_s")
_MAX_SHARE_OUTSIDE = 0.99  # share of the time; 1 would make the uncertainty infinite
_MAX_UNCERTAINTY = 10.0  # log standard deviation; at this value nothing is known
LEAST_THROUGHPUT, MOST_THROUGHPUT = 1e-6, 1e12  # per second, of the whole job: bounds of any training
_MIN_POWER_W, _MAX_POWER_W = 1e-3, 1e9  # of a whole job: from less than any processor to more than any site
_MIN_PEAK_GIB, _MAX_PEAK_GIB = 1e-6, 1e6  # of one process: from about a page to more than any machine has
POWER_OF = ("GPUs", "CPU packages")  # what a recorded power covers, and nothing else of the job
_NOT_SHOWN = frozenset({"trial_id", "arguments", "digests", "timed"})  # in the table of a notebook
MAX_WHOLE = 2**64  # larger whole numbers are no facts, and some have no float


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
class Measurement:
    """Throughput of one launch in steady state, for the whole job.

    Throughput is the work of the counted steps over the wall time from the first to the last of them. Loader stalls,
    logging and everything else between steps count; only observed evaluation and saving are left out. ``*_overall``
    includes these, too.

    Args:
        tokens_per_second: WPS of the whole job; ``None`` where tokens are unknown.
        samples_per_second: QPS of the whole job; ``None`` where samples are unknown.
        steps_counted: optimizer steps after warm-up, >= 1.
        warmup_steps: optimizer steps before them, left out.
        step_time_s: quantiles 0.1, 0.5 and 0.9 of the seconds per step; empty where unknown.
        peak_memory_gib: largest memory of one process (device memory, or resident set on CPU); ``None`` where unknown.
        mean_step_time_s: mean seconds per step, over the same time as the throughput; ``None`` where unknown.
        drift: relative slowdown of the last quarter of the steps against the first; ``None`` where unknown.
        share_outside_steps: share of the time between a step and the next one's first forward (loading data, logging),
            0 to 1; ``None`` where unknown. If steps are short, only a sample of them is measured.
        peak_reserved_gib: largest device memory that the recording process's allocator reserved; ``None`` on CPU.
        allocator_retries: number of times that this allocator found the device full and freed its cache; ``None`` on
            CPU.
        source: name of the log format that the numbers come from; empty where they were measured.
        statistic: statistic of the steps behind the throughput, one of ``STATISTICS``: ``mean`` as above; ``p50``, at
            the median step, in records of older releases; empty where unknown, as for imported numbers.
        relative_error: standard error of the logarithm of the throughput, as an estimate of a longer run of the same
            launch, from the steps of this run alone (``recorder/steps/rate_error``). ``None`` where unknown.
        evaluation_s: seconds of evaluation among the counted steps, left out; ``None`` where not observed.
        checkpoint_s: seconds of saving, likewise.
        tokens_per_second_overall: over the whole time, with evaluation and saving; ``None`` where unknown.
        samples_per_second_overall: likewise.
        is_steady: whether the steps have settled: no warm-up beyond what may be left out, no drift of over 5 % over
            the whole run, no lasting change of pace.
        may_include_evaluation: whether unobserved evaluation may count as training time.
        other_source: second source, whose throughput differs by more than a tenth; empty without one.
        other_tokens_per_second: throughput from that source.
        other_samples_per_second: likewise.
        startup_s: seconds from the start of the recorded process to the end of the first step, without compilation and
            one step at the steady pace; ``None`` where unknown.
        compile_s: seconds in torch's compiler until the steady state; ``None`` where unknown.
        warmup_s: seconds by which the other warm-up steps were longer than steady ones, without compilation; ``None``
            where unknown.
        power_watts: mean power of the whole job, from its first report to its last step, evaluation and saving
            included; ``None`` where it was not recorded on every part of it.
        power_of: what that power covers, one of ``POWER_OF``; empty without one.
        stated_mfu: share of the devices' peak FLOP/s that an imported table states; ``None`` where it states none.
    """

    tokens_per_second: float | None = None
    samples_per_second: float | None = None
    steps_counted: int = 1
    warmup_steps: int = 0
    step_time_s: tuple[float, ...] = ()
    peak_memory_gib: float | None = None
    mean_step_time_s: float | None = None
    drift: float | None = None
    share_outside_steps: float | None = None
    peak_reserved_gib: float | None = None
    allocator_retries: int | None = None
    source: str = ""
    statistic: str = ""
    relative_error: float | None = None
    evaluation_s: float | None = None
    checkpoint_s: float | None = None
    tokens_per_second_overall: float | None = None
    samples_per_second_overall: float | None = None
    is_steady: bool | None = None
    may_include_evaluation: bool | None = None
    other_source: str = ""
    other_tokens_per_second: float | None = None
    other_samples_per_second: float | None = None
    startup_s: float | None = None
    compile_s: float | None = None
    warmup_s: float | None = None
    power_watts: float | None = None
    power_of: str = ""
    stated_mfu: float | None = None

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            value = getattr(self, name)
            if value is not None and not _is_positive(value):
                raise RecordError(f"{name} must be a positive number, got {_display(value)}")
        for name in _NOT_NEGATIVE:
            value = getattr(self, name)
            if value is not None and not (_is_number(value) and value >= 0):
                raise RecordError(f"{name} must be a number >= 0, got {_display(value)}")
        self._check_shares()
        self._check_texts()
        if not all(_is_positive(value) for value in self.step_time_s) or len(self.step_time_s) not in {0, 3}:
            raise RecordError(f"step_time_s must hold three positive numbers or none, got {self.step_time_s!r:.60}")
        if not _is_count(self.steps_counted) or self.steps_counted < 1:
            raise RecordError(f"steps_counted must be a whole number >= 1, got {_display(self.steps_counted)}")
        if not _is_count(self.warmup_steps):
            raise RecordError(f"warmup_steps must be a whole number >= 0, got {_display(self.warmup_steps)}")

    def _check_shares(self) -> None:
        if self.drift is not None and not (_is_number(self.drift) and self.drift > -1):
            raise RecordError(f"drift must be a number > -1, got {_display(self.drift)}")
        share = self.share_outside_steps
        if share is not None and not (_is_number(share) and 0 <= share <= 1):
            raise RecordError(f"share_outside_steps must be a number from 0 to 1, got {_display(share)}")
        if self.allocator_retries is not None and not _is_count(self.allocator_retries):
            raise RecordError(f"allocator_retries must be a whole number >= 0, got {_display(self.allocator_retries)}")

    def _check_texts(self) -> None:
        for name in ("source", "other_source"):
            if not _is_text(getattr(self, name)):
                raise RecordError(
                    f"{name} must be a string of at most {MAX_TEXT} characters, got {_display(getattr(self, name))}"
                )
        if self.statistic not in {"", *STATISTICS}:
            raise RecordError(f"statistic must be one of {', '.join(STATISTICS)}, got {_display(self.statistic)}")
        if self.power_of not in {"", *POWER_OF}:
            raise RecordError(f"power_of must be one of {', '.join(POWER_OF)}, got {_display(self.power_of)}")
        for name in ("is_steady", "may_include_evaluation"):
            if getattr(self, name) not in {None, True, False}:
                raise RecordError(f"{name} must be true or false, got {_display(getattr(self, name))}")

    @property
    def uncertainty(self) -> float:
        """Standard deviation of the logarithm of the true throughput, estimated from this one run; 0 if unknown.

        For a throughput at the median step (``p50``) it has two parts. One is the distance from the mean: the excess of
        the mean step or, where that is unknown, the time outside steps. The other is the drift: half of it lies between
        the middle and the end of the run, and a run that has not settled may drift as far again.
        """
        if self.relative_error is not None:
            return min(self.relative_error, _MAX_UNCERTAINTY)
        if self.statistic != MEDIAN:
            return 0.0
        return min(math.hypot(self._median_offset, self._drift_uncertainty), _MAX_UNCERTAINTY)

    @property
    def _median_offset(self) -> float:
        # Its sign does not matter: it is squared.
        if self.mean_step_time_s is not None and self.step_time_s:
            return math.log(self.mean_step_time_s) - math.log(self.step_time_s[1])
        if self.share_outside_steps is not None:
            return math.log1p(-min(self.share_outside_steps, _MAX_SHARE_OUTSIDE))
        return 0.0

    @property
    def _drift_uncertainty(self) -> float:
        log_drift = math.log1p(self.drift or 0.0)
        return math.hypot(log_drift / 2, log_drift)

    def at(self, statistic: str) -> Measurement:
        """Return this measurement with its throughput at another statistic of the steps; unchanged if that is unknown.

        A percentile is one of throughput: at ``p90`` nine steps in ten are slower.

        Args:
            statistic: one of ``STATISTICS``.

        Raises:
            RecordError: ``statistic`` is none of them.

        >>> run = Measurement(
        ...     samples_per_second=80.0, step_time_s=(0.9, 1.0, 1.3), mean_step_time_s=1.25, statistic="mean"
        ... )
        >>> run.at("p50").samples_per_second
        100.0
        """
        if statistic not in STATISTICS:
            raise RecordError(f"unknown statistic {statistic!r}; choose from {', '.join(STATISTICS)}")
        before, after = (self._step_time(each) for each in (self.statistic, statistic))
        if statistic == self.statistic == MEDIAN and self.relative_error is None:
            return replace(
                self, relative_error=self._drift_uncertainty
            )  # the distance from the mean does not matter here
        if statistic == self.statistic or before is None or after is None:
            return self
        if self.statistic != MEAN:
            return self  # a percentile is of one step with its own batch: the total work is unknown
        rates = {name: rate * before / after for name in RATES if (rate := getattr(self, name)) is not None}
        return replace(self, **rates, statistic=statistic, relative_error=self.uncertainty)

    def _step_time(self, statistic: str) -> float | None:
        if statistic == MEAN:
            return self.mean_step_time_s
        return self.step_time_s[_STEP_TIME_INDEX[statistic]] if self.step_time_s and statistic else None

    @property
    def joules_per_step(self) -> float | None:
        """Energy of one optimizer step of the whole job, of what ``power_of`` says; ``None`` where unknown."""
        steps = self.steps_per_second
        return None if self.power is None or steps is None else self.power / steps

    @property
    def steps_per_second(self) -> float | None:
        """Optimizer steps per second, at the statistic of the throughput; ``None`` where unknown.

        Does not compare launches whose steps do different work.

        >>> Measurement(mean_step_time_s=0.25, statistic="mean").steps_per_second
        4.0
        """
        seconds = self._step_time(self.statistic)
        return 1.0 / seconds if seconds is not None else None

    def throughput(self, objective: str) -> float | None:
        """Return the throughput named ``objective``; ``None`` where it is unknown or impossible.

        Raises:
            RecordError: ``objective`` is not one of ``OBJECTIVES``.

        >>> Measurement(tokens_per_second=41_000.0).throughput("tokens_per_second")
        41000.0
        >>> Measurement(tokens_per_second=1e300).throughput("tokens_per_second") is None
        True
        """
        if objective not in OBJECTIVES:
            raise RecordError(f"unknown objective {objective!r}; choose from {', '.join(OBJECTIVES)}")
        value: float | None = getattr(self, objective)
        return value if value is not None and LEAST_THROUGHPUT <= value <= MOST_THROUGHPUT else None

    @property
    def power(self) -> float | None:
        """Mean power in watts; ``None`` where it is unknown or impossible."""
        watts = self.power_watts
        return watts if watts is not None and _MIN_POWER_W <= watts <= _MAX_POWER_W else None

    @property
    def peak_gib(self) -> float | None:
        """Largest memory of one process; ``None`` where it is unknown or impossible."""
        peak = self.peak_memory_gib
        return peak if peak is not None and _MIN_PEAK_GIB <= peak <= _MAX_PEAK_GIB else None

    def impossible(self) -> str:
        """Return an impossible throughput, with its unit, for a message; empty where there is none.

        >>> Measurement(samples_per_second=1e-300).impossible()
        '1e-300 samples/s'
        """
        for name in RATES:
            value = getattr(self, name)
            if value is not None and self.throughput(name) is None:
                return f"{value:g} {name.removesuffix('_per_second')}/s"
        return ""


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
    timed: TimedJob | None = None

    def __post_init__(self) -> None:
        if not self.trial_id:
            raise RecordError("a trial needs a trial_id")
        if not _is_count(self.attempts) or self.attempts < 1:
            raise RecordError(f"attempts must be a whole number >= 1, got {_display(self.attempts)}")
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

    def uncertainty(self, objective: str) -> float:
        """Return the standard deviation of the logarithm of ``throughput``, as the run itself reported it.

        The overheads of a job are taken as exact.
        """
        if self.measurement is None:
            return 0.0
        share = self.timed.share_of_steps(self._rate_of_job) if objective == SOONEST_DONE and self.timed else 1.0
        return share * self.measurement.uncertainty

    def _repr_html_(self) -> str:
        """Return all that is recorded but digests, for a notebook."""
        from torchx_cubicml.records.notebook import fact_rows, section_html, table_html

        measurement = asdict(self.measurement) if self.measurement is not None else {}
        groups = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in _NOT_SHOWN}
        rows = fact_rows({**groups, "measurement": measurement})
        return section_html(f"Trial {self.trial_id}", table_html((), rows))

    def fact(self, name: str) -> Value | None:
        """Return the value of ``name``: from the workload, else observed, else requested; ``None`` if unknown."""
        for source in (self.workload, self.observed, self.config):
            if name in source:
                return source[name]
        return None


def new_id(prefix: str) -> str:
    """Return a globally unique, readable name such as ``import-9f2c61d07e1b4a55``."""
    return f"{prefix}-{os.urandom(8).hex()}"


def freeze_values(values: object, *, where: str) -> dict[str, Value]:
    """Check a mapping from JSON, TOML or a caller, and return it with tuples for lists.

    Raises:
        RecordError: the argument is no mapping of names to scalars or flat lists, or a value is not finite or too
            large.

    >>> freeze_values({"sharding_strategy": ["FULL_SHARD", "NO_SHARD"]}, where="config")
    {'sharding_strategy': ('FULL_SHARD', 'NO_SHARD')}
    """
    if not isinstance(values, Mapping):
        raise RecordError(f"{where} must map names to values, got {type(values).__name__}")
    if len(values) > MAX_NAMES:
        raise RecordError(f"{where} has {len(values)} names; the limit is {MAX_NAMES}")
    return {
        _freeze_name(name, where): value if _is_frozen(value) else freeze_value(value, where=f"{where}.{name}")
        for name, value in values.items()
    }


def freeze_value(value: object, *, where: str) -> Value:
    """Check one value and return it, a list as a tuple; see ``freeze_values``."""
    if isinstance(value, list | tuple):
        if len(value) > MAX_ITEMS:
            raise RecordError(f"{where} has {len(value)} items; the limit is {MAX_ITEMS}")
        return tuple(_freeze_scalar(item, where) for item in value)
    return _freeze_scalar(value, where)


def _is_frozen(value: object) -> TypeGuard[Scalar]:
    """Return whether a value needs no conversion: a fast path, as most need none and a store holds millions."""
    if type(value) is str:
        return len(value) <= MAX_TEXT
    if type(value) is int:
        return -MAX_WHOLE <= value <= MAX_WHOLE
    return type(value) is bool or (type(value) is float and math.isfinite(value))


def _freeze_scalar(value: object, where: str) -> Scalar:
    scalar = _to_python(value)
    if isinstance(scalar, str):
        if len(scalar) > MAX_TEXT:
            raise RecordError(f"{where} has {len(scalar)} characters; the limit is {MAX_TEXT}")
        return scalar
    if isinstance(scalar, bool) or (isinstance(scalar, int) and abs(scalar) <= MAX_WHOLE):
        return scalar
    if isinstance(scalar, float) and math.isfinite(scalar):
        return scalar
    raise RecordError(
        f"{where} must be a boolean, a finite number, a string or a flat list of them, got {_display(scalar)}"
    )


def _to_python(value: object) -> object:
    """Convert a number or text of a library, such as numpy, to a Python scalar."""
    if type(value) in {bool, int, float, str}:
        return value
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "shape", None) == ():
        return item()
    return str(value) if isinstance(value, str) else value


def _display(value: object) -> str:
    if isinstance(value, int) and value.bit_length() > 64:
        return f"a whole number of {value.bit_length()} bits"  # it can have more digits than Python converts
    if isinstance(value, list | tuple | dict):
        return f"a {type(value).__name__} of {len(value)} entries"  # one nested too deep has no repr
    return f"{value!r:.60}"


def _freeze_name(name: object, where: str) -> str:
    if isinstance(name, str) and 0 < len(name) <= 128:
        return name
    raise RecordError(f"{where}: names must be strings of 1 to 128 characters, got {_display(name)}")


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= MAX_TEXT


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= sys.float_info.max


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_WHOLE
