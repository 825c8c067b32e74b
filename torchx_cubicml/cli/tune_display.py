"""Terminal display of a tune: tables and progress lines."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Self

from rich.table import Table
from rich.text import Text

from torchx_cubicml.cli.legality_text import legality_lines
from torchx_cubicml.launch.messages import (
    interval_text,
    statistic_text,
    title_text,
    unit_text,
    worth_text,
)
from torchx_cubicml.records.crowding import crowded_share
from torchx_cubicml.records.job_time import PART_TEXTS, SOONEST_DONE, seconds_text
from torchx_cubicml.records.redaction import mask
from torchx_cubicml.records.trial import MEAN, OBJECTIVES
from torchx_cubicml.records.value_text import value_text
from torchx_cubicml.tuner import Begun, Ended, Launching, Notice, Waiting
from torchx_cubicml.tuner.launch_state import NO_RESULT

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from rich.console import Console

    from torchx_cubicml.records.trial import Config
    from torchx_cubicml.space import SearchSpace
    from torchx_cubicml.tuner import Prepared, Step
    from torchx_cubicml.tuner.comparison import Comparison, Repeats


def comparison_table(comparison: Comparison, *, statistic: str = MEAN) -> Table:
    """Return a table of the user's config beside the best one, if another: parameters, then measurements."""
    objective = comparison.objective
    title = f"{title_text(objective)} {statistic_text(statistic)}".rstrip()
    of_job = ", whole job" if objective in OBJECTIVES else ""
    table = Table(title=f"{title}{of_job}", title_justify="left")
    table.add_column("")
    table.add_column("your command", justify="right", overflow="fold")
    sides = [comparison.baseline]
    if comparison.best is not comparison.baseline and comparison.best.config != comparison.baseline.config:
        table.add_column("best found", justify="right", overflow="fold")
        sides.append(comparison.best)
    for name, value in comparison.best.config.items():
        before = comparison.baseline.config.get(name, "-")
        style = "" if before == value else "bold"
        values = [Text(value_text(before)), Text(value_text(value), style)]
        table.add_row(Text(name, style), *values[: len(sides)])
    table.add_section()
    cells: list[tuple[str, Callable[[Repeats], str]]] = [
        ("median", partial(_median_text, objective=objective)),
        ("range", partial(_range_text, objective=objective)),
        *((text, partial(_part_text, part=part)) for part, text in PART_TEXTS.items()),
        ("uncertainty of one launch", _uncertainty_text),
        ("launches", _count_text),
    ]
    for heading, cell in cells:
        texts = [cell(side) for side in sides]
        if any(texts):
            table.add_row(heading, *texts)
    return table


def _median_text(repeats: Repeats, *, objective: str) -> str:
    return worth_text(repeats.middle, objective)


def _range_text(repeats: Repeats, *, objective: str) -> str:
    ends = [worth_text(end(repeats.throughputs), objective) for end in (min, max)]
    return " to ".join(reversed(ends) if objective == SOONEST_DONE else ends)


def _part_text(repeats: Repeats, *, part: str) -> str:
    seconds = repeats.time_to_done.get(part)
    return "" if seconds is None else seconds_text(seconds)


def _uncertainty_text(repeats: Repeats) -> str:
    return interval_text(median(repeats.uncertainties)) if repeats.uncertainties else ""


def _count_text(repeats: Repeats) -> str:
    return str(len(repeats.throughputs))


def open_display(console: Console, prepared: Prepared) -> Display:
    """Return the display that fits the console."""
    return Live(console, prepared) if console.is_terminal else Display(console, prepared)


class Display(AbstractContextManager["Display"]):
    """Display for files and pipes: one plain line for each launch that begins or ends."""

    _names_config = False  # of an ended launch: the line of its begin has named it

    def __init__(self, console: Console, prepared: Prepared) -> None:
        self._console = console
        self._prepared = prepared

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return None

    def show(self, step: Step) -> None:
        """Show one step of the tune."""
        if isinstance(step, Begun):
            self._line(_begun_line(step, self._prepared))
            for line in legality_lines(self._bound_space()):
                self._line(line)
        elif isinstance(step, Notice):
            self._line(step.text)
        elif isinstance(step, Launching):
            self._line(_launching_line(step, self._prepared))
        elif isinstance(step, Ended):
            self._line(_ended_line(step, self._prepared, names_config=self._names_config))

    def _bound_space(self) -> SearchSpace:
        prepared = self._prepared
        return prepared.space.bind(workload=prepared.workload, current=prepared.current)

    def _line(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


class Live(Display):
    """Display for terminals: a line per ended launch, above a live table of the launches in flight."""

    _names_config = True

    def __init__(self, console: Console, prepared: Prepared) -> None:
        from rich.live import Live as RichLive

        super().__init__(console, prepared)
        self._live = RichLive(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, step: Step) -> None:
        """Show one step of the tune."""
        if isinstance(step, Waiting):
            self._live.update(waiting_table(step, self._prepared.space.statistic), refresh=True)
        elif not isinstance(step, Launching):  # it appears in the table
            super().show(step)


def waiting_table(step: Waiting, statistic: str) -> Table:
    """Return a table of the launches in flight; its caption holds the best throughput and the remaining budget."""
    from rich.table import Table
    from rich.text import Text

    from torchx_cubicml.records.value_text import config_text

    best = "nothing measured yet"
    if step.best is not None:
        best = f"best {worth_text(step.best, step.objective)} {_unit(step.objective, statistic)}"
    left = (
        [step.budget_left]
        if step.time_left_s is None
        else [step.budget_left, f"about {_duration_text(step.time_left_s)}"]
    )
    table = Table(box=None, caption=f"{best}; {', '.join(left)}", caption_justify="left")
    for name in ("", "purpose", "config", "state", "time", "predicted", "measured"):
        table.add_column(name, no_wrap=name != "config", justify="right" if name in {"time", "predicted"} else "left")
    for pending in step.in_flight:
        cells = [
            f"{pending.number}",
            pending.purpose,
            config_text(pending.config),
            pending.phase,
            _duration_text(pending.since_s),
        ]
        measured = " ".join(
            filter(None, (_throughput_text(pending.measured, step.objective), interval_text(pending.uncertainty)))
        )
        table.add_row(*map(Text, [*cells, _throughput_text(pending.expected, step.objective), measured]))
    return table


def _begun_line(step: Begun, prepared: Prepared) -> str:
    request = prepared.request
    verb = "resuming" if step.resumed else "starting"
    done = f" after {step.launches} launches ({step.in_flight} in flight)" if step.resumed else ""
    parallel = f", {step.at_a_time} at a time" if step.at_a_time > 1 else ""
    return (
        f"tuning {prepared.component.launch.program} on {request.scheduler}: {request.budget}{parallel}; store "
        f"{mask(prepared.store_url)}; {verb} {step.tune_id}{done}"
    )


def _launching_line(step: Launching, prepared: Prepared) -> str:
    predicted = step.suggestion.throughput
    expected = "" if predicted is None else f" ({worth_text(predicted, prepared.space.objective)} predicted)"
    return f"{step.number:3d} {step.purpose:8s} {_changes_text(step.suggestion.config, prepared.current)}{expected}"


def _changes_text(config: Config, current: Config) -> str:
    """Return the values of a config that differ from the user's own; all values where none does.

    >>> _changes_text({"a": 1, "b": 2}, {"a": 1, "b": 3}), _changes_text({"a": 1, "b": 3}, {"a": 1, "b": 3})
    ('b=2', 'a=1 b=3')
    """
    from torchx_cubicml.records.value_text import config_text

    changed = {name: value for name, value in config.items() if current.get(name) != value}
    return config_text(changed or config)


def _ended_line(step: Ended, prepared: Prepared, *, names_config: bool) -> str:
    doubt = interval_text(step.trial.uncertainty(step.objective))
    unit = _unit(step.objective, prepared.space.statistic)
    rate = f"{_throughput_text(step.throughput, step.objective)} {unit} {doubt}".rstrip()
    rate = "" if step.throughput is None else rate
    rate += ", crowded" if rate and crowded_share(step.trial) else ""
    found = rate or ("" if step.trial.reason.startswith(NO_RESULT) else f"{step.trial.state}")
    predicted = (
        f" ({worth_text(step.expected, step.objective)} predicted)"
        if step.throughput is not None and step.expected is not None
        else ""
    )
    reason = step.trial.reason if step.throughput is None else ""
    why = f" ({reason})" if reason and found else reason
    named = f"{_changes_text(step.trial.config, prepared.current)}: " if names_config else ""
    return f"{step.number:3d}   -> {named}{found}{predicted}{why}"


def _unit(objective: str, statistic: str) -> str:
    return f"{unit_text(objective)} {statistic_text(statistic)}".rstrip()


def _throughput_text(value: float | None, objective: str) -> str:
    return "" if value is None else worth_text(value, objective)


def _duration_text(seconds: float) -> str:
    """Return a duration in words.

    >>> _duration_text(42), _duration_text(600), _duration_text(9000)
    ('42 s', '10 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
