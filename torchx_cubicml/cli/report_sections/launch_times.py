"""Section of time: launches over wall time, and what queues, start-ups and failures took."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median
from typing import TYPE_CHECKING, Any

from torchx_cubicml.predictors.round_table import numbered
from torchx_cubicml.records.iso_time import parse_time
from torchx_cubicml.records.job_time import QUEUE_S, seconds_text
from torchx_cubicml.records.suggestion import tune_of
from torchx_cubicml.records.value_text import config_text
from torchx_cubicml.report.figures.failure_shapes import ENDS
from torchx_cubicml.report.figures.timeline import timeline
from torchx_cubicml.report.markup import Html, element, joined
from torchx_cubicml.report.sections.figures import figures_html
from torchx_cubicml.report.sections.small_table import small_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torchx_cubicml.cli.report_sections.view import WorkloadView
    from torchx_cubicml.records.trial import Trial

_MOST_DRAWN = 200  # launches: the latest
_MOST_LANES = 16
_LEAST_PAUSE_S = 600.0  # without a launch; a longer one is cut out where launches are shorter
_PAUSE_LAUNCHES = 1.0  # pauses shorter than so many median launches stay
_CUT = 0.012  # of the time that is drawn: the space left where a pause is cut out
_MOST_SPAN_S = 366 * 86_400.0  # a longer launch is a wrong clock
_MOST_LETTERS = 100  # of a config beside a mark


def section(view: WorkloadView) -> Html:
    """Return the figure, and a table of the time by how the launches ended."""
    launches = _launches(view)
    if not launches:
        return Html("")
    heading = element("h3", "When the launches ran")
    how = (
        "From the recorded times: a tune notes when it submits a launch, the job when it starts and ends. Start-up is "
        "told apart where a throughput was measured: it ends when the steps have reached their steady pace."
    )
    figures = Html("")
    if view.colours is not None:
        drawn = [_figure(group, title) for title, group in _groups(launches)]
        figures = figures_html([each for each in drawn if each], colours=view.colours, name=f"times-{view.place}")
    return joined(heading, element("p", how, class_="note"), figures, _table(launches))


def data(view: WorkloadView) -> list[dict[str, Any]]:
    """Return the times of each launch as JSON values, in seconds since 1970."""
    names = ("begin", "start", "steady", "end", "outcome", "devices", "tune")
    return [
        {"trial_id": each.trial.trial_id, **{name: getattr(each, name) for name in names}} for each in _launches(view)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _TimedLaunch:
    """One launch in seconds since the epoch.

    Args:
        begin: of its queue, or of its program where no queue is recorded.
        start: of its program; ``None`` where no start was recorded.
        steady: of its steps at their steady pace; the start where that is unknown.
        end: of its job.
        outcome: in words.
        devices: processes of the job; 0 where unknown.
        tune: name of its tune; empty for none.
        number: round of a tune; ``None`` for none.
        trial: its record.
    """

    begin: float
    start: float | None
    steady: float
    end: float
    outcome: str
    devices: int
    tune: str
    number: int | None
    trial: Trial

    @property
    def phases(self) -> list[tuple[str, float, float]]:
        """Name, begin and end of each phase that took time."""
        if self.start is None:
            return [("no start recorded", self.begin, self.end)]
        found = [
            ("queued", self.begin, self.start),
            ("starting up", self.start, self.steady),
            ("running", self.steady, self.end),
        ]
        return [phase for phase in found if phase[2] > phase[1]]


def _launches(view: WorkloadView) -> list[_TimedLaunch]:
    """Return the launches with times, in the order of their begins."""
    numbers = {id(trial): number for number, trial in numbered(view.trials, tune=view.rounds.tune)}
    known = (time.timestamp() for each in view.trials if (time := parse_time(each.ended_at or each.started_at)))
    latest = max(known, default=0.0)
    found = (_timed(trial, numbers.get(id(trial)), latest=latest) for trial in view.trials)
    return sorted((each for each in found if each is not None), key=lambda each: (each.begin, each.end))


def _timed(trial: Trial, number: int | None, *, latest: float) -> _TimedLaunch | None:
    """Return a launch with its times; ``None`` where they are not known or contradict each other."""
    first, last = parse_time(trial.started_at), parse_time(trial.ended_at)
    if first is None or (last is None and trial.state.ended):
        return None
    begin = first.timestamp()
    end = last.timestamp() if last is not None else latest
    if not 0.0 < end - begin <= _MOST_SPAN_S:
        return None
    start = _start(trial, begin, end)
    devices = trial.fact("world_size")
    return _TimedLaunch(
        begin=begin,
        start=start,
        steady=min(end, (begin if start is None else start) + _start_up_s(trial)),
        end=end,
        outcome=str(trial.state).replace("_", " ") if trial.state.ended else "not ended",
        devices=devices if isinstance(devices, int) and not isinstance(devices, bool) and devices > 0 else 0,
        tune=tune_of(trial.launch_id),
        number=number,
        trial=trial,
    )


def _start(trial: Trial, begin: float, end: float) -> float | None:
    """Return the start of the program; the first event is the plan where a tune made the launch."""
    queue = trial.observed.get(QUEUE_S)
    if isinstance(queue, int | float) and 0.0 <= queue <= end - begin:
        return begin + queue
    is_restarted = trial.attempts > 1 or trial.measurement is not None  # it ran, though its queue is not known
    return begin if not trial.launch_id or is_restarted else None


def _start_up_s(trial: Trial) -> float:
    measured = trial.measurement
    if measured is None:
        return 0.0
    return sum(part or 0.0 for part in (measured.startup_s, measured.compile_s, measured.warmup_s))


def _groups(launches: Sequence[_TimedLaunch]) -> list[tuple[str, list[_TimedLaunch]]]:
    """Return a title and the launches of each figure: those of the latest tune are short beside others."""
    latest = next((each.tune for each in reversed(launches) if each.tune), "")
    tuned = [each for each in launches if latest and each.tune == latest]
    others = [each for each in launches if not latest or each.tune != latest]
    if not tuned or not others:
        return [("The launches over time, and how each ended", [*launches])]
    return [
        ("The launches of the latest tune over time, and how each ended", tuned),
        ("The other launches over time, and how each ended", others),
    ]


def _figure(launches: Sequence[_TimedLaunch], title: str) -> dict[str, Any] | None:
    shown = list(launches)[-_MOST_DRAWN:]
    axis = _Axis.of(shown)
    placed = list(_lanes(shown))
    drawn = [(launch, lane) for launch, lane in placed if lane < _MOST_LANES]
    spans = [
        {"begin": axis.at(begin), "end": axis.at(end), "lane": lane, "phase": phase, "label": _label(launch, phase)}
        for launch, lane in drawn
        for phase, begin, end in launch.phases
    ]
    ends = [
        {"at": axis.at(launch.end), "lane": lane, "outcome": launch.outcome, "label": _label(launch, launch.outcome)}
        for launch, lane in drawn
        if launch.outcome in ENDS
    ]
    left_out = len(launches) - len(drawn)
    note = f"the latest {len(drawn):,} of {len(launches):,} launches" if left_out else f"{len(drawn):,} launches"
    together = "; launches at the same time have lanes of their own" if any(lane for _, lane in drawn) else ""
    since = _time_text(shown[0].begin)
    return timeline(spans, ends, _marks(shown, axis), title=title, since=since, note=f"{note}{together}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Axis:
    """Wall time with long pauses cut out.

    Args:
        stretches: begin and end of the time between two pauses, and what to take off a time in it.
    """

    stretches: tuple[tuple[float, float, float], ...]

    @classmethod
    def of(cls, launches: Sequence[_TimedLaunch]) -> _Axis:
        """Return the axis of some launches, in the order of their begins."""
        pause = max(_LEAST_PAUSE_S, _PAUSE_LAUNCHES * median(each.end - each.begin for each in launches))
        found = [[launches[0].begin, launches[0].end]]
        for each in launches[1:]:
            if each.begin - found[-1][1] > pause:
                found.append([each.begin, each.end])
            found[-1][1] = max(found[-1][1], each.end)
        gap = _CUT * sum(end - begin for begin, end in found)
        stretches, at = [], 0.0
        for begin, end in found:
            stretches.append((begin, end, begin - at))
            at += end - begin + gap
        return cls(stretches=tuple(stretches))

    def at(self, time: float) -> float:
        """Return the place of a time within a stretch, in seconds."""
        off = next(off for _, end, off in self.stretches if time <= end)
        return time - off


def _lanes(launches: Sequence[_TimedLaunch]) -> Iterator[tuple[_TimedLaunch, int]]:
    """Yield each launch with the first lane that is free when it begins."""
    free: list[float] = []
    for launch in launches:
        lane = next((lane for lane, until in enumerate(free) if until <= launch.begin), len(free))
        if lane == len(free):
            free.append(launch.end)
        free[lane] = launch.end
        yield launch, lane


def _marks(launches: Sequence[_TimedLaunch], axis: _Axis) -> list[tuple[float, str, bool]]:
    """Return the places of the cuts, each with its date, and those of the first launches of rounds."""
    cuts = [(begin - off, _time_text(begin), True) for begin, _, off in axis.stretches[1:]]
    begins: dict[int, float] = {}
    for launch in launches:
        if launch.number:
            begins.setdefault(launch.number, launch.begin)
    return [*cuts, *((axis.at(begin), f"round {number}", False) for number, begin in begins.items())]


def _time_text(time: float) -> str:
    return f"{datetime.fromtimestamp(time, UTC):%d %b %Y, %H:%M} UTC"


def _label(launch: _TimedLaunch, what: str) -> str:
    """Return the text of a mark, for readers who cannot see it."""
    phases = ", ".join(f"{phase} {seconds_text(end - begin)}" for phase, begin, end in launch.phases)
    config = config_text(launch.trial.config)[:_MOST_LETTERS]
    return "; ".join(filter(None, (what, _time_text(launch.begin), phases, f"end: {launch.outcome}", config)))


def _table(launches: Sequence[_TimedLaunch]) -> Html:
    """Return the time in each phase by how the launches ended, the most frequent end first."""
    groups: dict[str, list[_TimedLaunch]] = {}
    for launch in launches:
        groups.setdefault(launch.outcome, []).append(launch)
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    rows = [_row(outcome, group) for outcome, group in ordered]
    if len(rows) > 1:
        rows.append(_row("all", launches))
    heads = ("end", "launches", "queued", "starting up", "running", "device hours")
    return small_table(heads, rows, label="Time by end of the launches")


def _row(outcome: str, launches: Sequence[_TimedLaunch]) -> list[str]:
    seconds: defaultdict[str, float] = defaultdict(float)
    for each in launches:
        for phase, begin, end in each.phases:
            seconds[phase] += end - begin
    totals = (seconds[phase] for phase in ("queued", "starting up", "running"))
    hours = sum(each.devices * (each.end - each.start) for each in launches if each.start is not None) / 3600.0
    times = (seconds_text(total) if total else "-" for total in totals)
    return [outcome, f"{len(launches):,}", *times, f"{hours:,.2f}" if hours else "-"]
