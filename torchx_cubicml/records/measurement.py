"""Measurement: throughput, step times, memory and power of one launch in steady state."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torchx_cubicml.errors import RecordError
from torchx_cubicml.records.objective_units import OBJECTIVES, RATES
from torchx_cubicml.records.values import MAX_TEXT, display, is_count, is_number, is_positive, is_text

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
            if value is not None and not is_positive(value):
                raise RecordError(f"{name} must be a positive number, got {display(value)}")
        for name in _NOT_NEGATIVE:
            value = getattr(self, name)
            if value is not None and not (is_number(value) and value >= 0):
                raise RecordError(f"{name} must be a number >= 0, got {display(value)}")
        self._check_shares()
        self._check_texts()
        if not all(is_positive(value) for value in self.step_time_s) or len(self.step_time_s) not in {0, 3}:
            raise RecordError(f"step_time_s must hold three positive numbers or none, got {self.step_time_s!r:.60}")
        if not is_count(self.steps_counted) or self.steps_counted < 1:
            raise RecordError(f"steps_counted must be a whole number >= 1, got {display(self.steps_counted)}")
        if not is_count(self.warmup_steps):
            raise RecordError(f"warmup_steps must be a whole number >= 0, got {display(self.warmup_steps)}")

    def _check_shares(self) -> None:
        if self.drift is not None and not (is_number(self.drift) and self.drift > -1):
            raise RecordError(f"drift must be a number > -1, got {display(self.drift)}")
        share = self.share_outside_steps
        if share is not None and not (is_number(share) and 0 <= share <= 1):
            raise RecordError(f"share_outside_steps must be a number from 0 to 1, got {display(share)}")
        if self.allocator_retries is not None and not is_count(self.allocator_retries):
            raise RecordError(f"allocator_retries must be a whole number >= 0, got {display(self.allocator_retries)}")

    def _check_texts(self) -> None:
        for name in ("source", "other_source"):
            if not is_text(getattr(self, name)):
                raise RecordError(
                    f"{name} must be a string of at most {MAX_TEXT} characters, got {display(getattr(self, name))}"
                )
        if self.statistic not in {"", *STATISTICS}:
            raise RecordError(f"statistic must be one of {', '.join(STATISTICS)}, got {display(self.statistic)}")
        if self.power_of not in {"", *POWER_OF}:
            raise RecordError(f"power_of must be one of {', '.join(POWER_OF)}, got {display(self.power_of)}")
        for name in ("is_steady", "may_include_evaluation"):
            if getattr(self, name) not in {None, True, False}:
                raise RecordError(f"{name} must be true or false, got {display(getattr(self, name))}")

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
