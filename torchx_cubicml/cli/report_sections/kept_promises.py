"""Section of promises: what each rewritten launch was promised, what it measured, and the time that this saved."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from torchx_cubicml.launch.messages import interval_text, rate_text
from torchx_cubicml.records.iso_time import parse_time
from torchx_cubicml.records.job_time import OVERHEADS, seconds_text
from torchx_cubicml.records.objective_units import OBJECTIVES
from torchx_cubicml.records.suggestion import promised_throughput
from torchx_cubicml.records.trial import Origin
from torchx_cubicml.records.value_text import config_text
from torchx_cubicml.report.figures.promise_ratios import promise_ratios
from torchx_cubicml.report.markup import Html, element, joined
from torchx_cubicml.report.sections.figures import figures_html
from torchx_cubicml.report.sections.small_table import small_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torchx_cubicml.cli.report_sections.view import WorkloadView
    from torchx_cubicml.records.measurement import Measurement
    from torchx_cubicml.records.trial import Trial

_MOST_ROWS, _MOST_DRAWN = 30, 60  # the latest
_MOST_LETTERS = 160
_ONE_SIDED_90 = 1.2816  # standard deviations: the ends of an 80 % interval
_LONGEST_S = 366 * 86_400.0  # a longer launch is a wrong clock


def section(view: WorkloadView) -> Html:
    """Return the sentences, the figure and the table; nothing where no launch was rewritten."""
    promises = _promises(view)
    if not promises:
        return Html("")
    figures = Html("")
    if view.colours is not None:
        rows = [_drawn(each) for each in promises if each.ratio is not None][-_MOST_DRAWN:]
        drawn = promise_ratios(rows)
        figures = figures_html([drawn] if drawn else [], colours=view.colours, name=f"promises-{view.place}")
    notes = [element("p", text, class_="note") for text in (_held(promises), *_saved(promises)) if text]
    return joined(
        element("h3", "What rewritten launches were promised"), *notes, figures, _table(promises, view.objective)
    )


def data(view: WorkloadView) -> list[dict[str, Any]]:
    """Return each promise beside what was measured as JSON values."""
    names = ("number", "throughput", "measured", "low", "high", "own", "is_inside")
    return [
        {"trial_id": each.trial.trial_id, **{name: getattr(each, name) for name in names}} for each in _promises(view)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Promise:
    """Promise of one rewritten launch.

    Args:
        number: of the launch among the rewritten ones, from 1.
        trial: its record.
        throughput: promised median, in the unit of the objective.
        measured: measured throughput; ``None`` where none was.
        low: lower end of the 80 % interval of the true throughput; ``None`` where not stored.
        high: upper end, likewise.
        own: prediction of the user's own config, likewise.
        own_error: standard deviation of its logarithm: at most that of the promised gain; ``None`` where not stored.
    """

    number: int
    trial: Trial
    throughput: float
    measured: float | None
    low: float | None
    high: float | None
    own: float | None
    own_error: float | None

    @property
    def ratio(self) -> float | None:
        """Measured over promised throughput."""
        return None if self.measured is None else self.measured / self.throughput

    @property
    def is_inside(self) -> bool | None:
        """True if the measurement lies in the interval; ``None`` where either is unknown."""
        if self.measured is None or self.low is None or self.high is None:
            return None
        return self.low <= self.measured <= self.high


def _promises(view: WorkloadView) -> list[_Promise]:
    """Return the promises of the launches that were rewritten to a faster config, oldest first."""
    rewritten = [trial for trial in view.trials if trial.origin is Origin.REWRITE and trial.state.ended]
    found: list[_Promise] = []
    for trial in sorted(rewritten, key=lambda trial: (trial.started_at, trial.trial_id)):
        promised = promised_throughput(trial.suggestion, view.objective)
        if promised is not None:
            found.append(_promise(trial, promised, view.objective, number=len(found) + 1))
    return found


def _promise(trial: Trial, promised: float, objective: str, *, number: int) -> _Promise:
    low, high, own = (_stored(trial, name) for name in ("low", "high", "baseline_throughput"))
    least, most = (_stored(trial, name) for name in ("gain_low", "gain_high"))
    is_known = least is not None and most is not None and least <= most
    return _Promise(
        number=number,
        trial=trial,
        throughput=promised,
        measured=trial.throughput(objective),
        low=low,
        high=high,
        own=own,
        own_error=math.log(most / least) / (2.0 * _ONE_SIDED_90) if is_known and most and least else None,
    )


def _stored(trial: Trial, name: str) -> float | None:
    """Return a positive number stored with the prediction of a launch."""
    value = (trial.suggestion or {}).get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 < value < 1e300:
        return None
    return float(value)


def _held(promises: Sequence[_Promise]) -> str:
    """Return the sentence on how the promises held."""
    ratios = [each.ratio for each in promises if each.ratio is not None]
    places = [each.is_inside for each in promises if each.is_inside is not None]
    count = f"{_launches(len(promises))} {'was' if len(promises) == 1 else 'were'} rewritten to a faster config"
    if not ratios:
        return f"{count}; none of them was measured."
    inside = (
        f" {sum(places):,} of {len(places):,} measurements lie in the 80 % interval of their promise, which leaves out "
        "the error of a single measurement."
        if places
        else ""
    )
    failed = len(promises) - len(ratios)
    rest = f" {_launches(failed)} measured nothing." if failed else ""
    return f"{count}: measured over promised throughput is {median(ratios):.2f} in the median.{inside}{rest}"


def _saved(promises: Sequence[_Promise]) -> list[str]:
    """Return the sentence on the time that the rewrites saved; none where it cannot be told.

    A launch at a throughput of m did the work for which the user's own config, at b, would have taken m / b times as
    long. A launch without a measurement counts as lost. All launches share the error of b, so the ends add up.
    """
    known = [
        (each, seconds)
        for each in promises
        if each.own is not None and each.own_error is not None and (seconds := _steady_s(each)) is not None
    ]
    if not any(each.measured is not None for each, _ in known):
        return []
    saved, least, most = (_total_s(known, side * _ONE_SIDED_90) for side in (0.0, 1.0, -1.0))
    ran = sum(seconds for _, seconds in known)
    lost = sum(seconds for each, seconds in known if each.measured is None)
    left_out = len(promises) - len(known)
    parts = [
        f"They ran {seconds_text(ran)} at their pace. With your own config, as it was predicted then, the same work "
        f"would have taken {_signed(saved)} (80 % interval: {_signed(least)} to {_signed(most)}).",
        f"Of that, {seconds_text(lost)} of launches without a measurement count as lost." if lost else "",
        f"{_launches(left_out)} without recorded times, or without that prediction and its interval, "
        f"{'is' if left_out == 1 else 'are'} left out."
        if left_out
        else "",
        "Start-up is not counted.",
    ]
    return [" ".join(filter(None, parts))]


def _total_s(known: Iterable[tuple[_Promise, float]], deviations: float) -> float:
    """Return the seconds saved, if the own config is faster than predicted by so many standard deviations."""
    total = 0.0
    for each, seconds in known:
        own = (each.own or 1.0) * math.exp(deviations * (each.own_error or 0.0))
        total += -seconds if each.measured is None else seconds * (each.measured / own - 1.0)
    return total


def _steady_s(promise: _Promise) -> float | None:
    """Return the seconds of a launch's steps, without start-up, evaluation and saving; ``None`` where unknown.

    Only throughputs of a whole job tell how long the same work takes.
    """
    trial = promise.trial
    begin, end = parse_time(trial.started_at), parse_time(trial.ended_at)
    if begin is None or end is None or (trial.suggestion or {}).get("objective") not in {None, *OBJECTIVES}:
        return None
    queue = trial.observed.get("queue_s")
    seconds = (end - begin).total_seconds() - (queue if isinstance(queue, int | float) else 0.0)
    if trial.measurement is not None:
        overheads = (getattr(trial.measurement, name, None) or 0.0 for name in OVERHEADS[1:])
        seconds = (seconds - sum(overheads)) * _share_of_steps(trial.measurement)
    return seconds if 0.0 < seconds <= _LONGEST_S else None


def _share_of_steps(measured: Measurement) -> float:
    """Return the share of the measured time that is neither evaluation nor saving."""
    others = (measured.evaluation_s or 0.0) + (measured.checkpoint_s or 0.0)
    rate = measured.steps_per_second
    steps_s = measured.steps_counted / rate if rate else 0.0
    return steps_s / (steps_s + others) if steps_s > 0.0 else 1.0


def _signed(seconds: float) -> str:
    return f"{seconds_text(abs(seconds))} {'more' if seconds >= 0.0 else 'less'}"


def _launches(count: int) -> str:
    return f"{count:,} launch{'es' if count != 1 else ''}"


def _drawn(promise: _Promise) -> dict[str, Any]:
    def over(value: float | None) -> float | None:
        return None if value is None else value / promise.throughput

    texts = [
        f"rewritten launch {promise.number:,}",
        f"measured over promised {promise.ratio:.3f}",
        "" if promise.is_inside is None else f"{'inside' if promise.is_inside else 'outside'} its interval",
        config_text(promise.trial.config)[:_MOST_LETTERS],
    ]
    return {
        "number": promise.number,
        "ratio": promise.ratio,
        "low": over(promise.low),
        "high": over(promise.high),
        "own": over(promise.own),
        "label": "; ".join(filter(None, texts)),
    }


def _table(promises: Sequence[_Promise], objective: str) -> Html:
    shown = promises[-_MOST_ROWS:]
    table = small_table(
        ("launch", "started", "promised gain", "promised", "80 % interval", "measured", "inside"),
        [_row(each, objective) for each in shown],
        label="Promised and measured throughput of rewritten launches",
        texts=("started", "inside"),
    )
    left_out = len(promises) - len(shown)
    note = [element("p", f"{left_out:,} earlier ones are not listed.", class_="note")] if left_out else []
    return joined(table, *note)


def _row(promise: _Promise, objective: str) -> list[str]:
    trial, started = promise.trial, parse_time(promise.trial.started_at)
    gain = _stored(trial, "gain")
    doubt = interval_text(trial.uncertainty(objective))
    ends = (promise.low, promise.high)
    measured = (
        rate_text(promise.measured, objective) if promise.measured is not None else str(trial.state).replace("_", " ")
    )
    return [
        f"{promise.number:,}",
        f"{started:%d %b %Y, %H:%M}" if started is not None else "-",
        f"{100.0 * (gain - 1.0):+,.0f} %" if gain is not None else "-",
        rate_text(promise.throughput, objective),
        " to ".join(rate_text(end, objective).partition(" ")[0] for end in ends if end is not None) or "-",
        " ".join(filter(None, (measured.replace("_", " "), doubt))),
        {True: "yes", False: "no", None: "-"}[promise.is_inside],
    ]
