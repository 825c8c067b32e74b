"""Terminal display of a tune: tables and progress lines."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Self

from rich.console import Group
from rich.table import Table
from rich.text import Text

from torchx_cubicml.cli.legality_text import legality_lines
from torchx_cubicml.cli.observed_config import differing_values
from torchx_cubicml.cli.progress_bar import DELAY_S
from torchx_cubicml.cli.terminal import broken_lines, fitted, joined, wrapped
from torchx_cubicml.history.same_training import shown_always
from torchx_cubicml.launch.messages import best_word, interval_text, statistic_text, title_text, unit_text, worth_text
from torchx_cubicml.records.config_changes import config_changes, config_values, short_name
from torchx_cubicml.records.crowding import crowded_share, crowding_text
from torchx_cubicml.records.job_time import PART_TEXTS, seconds_text
from torchx_cubicml.records.measurement import MEAN
from torchx_cubicml.records.objective_units import OBJECTIVES, SOONEST_DONE
from torchx_cubicml.records.redaction import mask
from torchx_cubicml.records.value_text import value_text
from torchx_cubicml.tuner import Begun, Ended, Launching, Notice, Waiting
from torchx_cubicml.tuner.launch_state import NO_RESULT
from torchx_cubicml.tuner.unconfirmed import least_gain_text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from types import TracebackType

    from rich.console import Console, JustifyMethod, RenderableType

    from torchx_cubicml.advisor.comparison import Comparison, Repeats
    from torchx_cubicml.records.values import Config
    from torchx_cubicml.space import SearchSpace
    from torchx_cubicml.tuner import Prepared, Step

_INDENT = "    "
_COLUMNS = ("", "purpose", "config", "state", "time", "predicted", "measured")  # of the launches in flight
_REFRESHES_PER_S = 2.0
_DECIDING = "deciding what comes next"
_LESS_IMPORTANT = ("state", "predicted", "time", "purpose")  # the least first


def comparison_table(
    comparison: Comparison, *, statistic: str = MEAN, best_label: str = "", prepared: Prepared | None = None
) -> Table:
    """Return a table of the user's config beside the best one, if another: values that differ, then measurements.

    Values of the batch and others that change the training are shown where they stay, too.

    Args:
        comparison: of both configs.
        statistic: of the throughput over steps.
        best_label: heading of the other config; by default, whether it is confirmed.
        prepared: request of the tune, which tells what changes the training; ``None`` where there is none.
    """
    objective = comparison.objective
    title = f"{title_text(objective)} {statistic_text(statistic)}".rstrip()
    of_job = ", whole job" if objective in OBJECTIVES else ""
    table = Table(title=f"{title}{of_job}", title_justify="left")
    table.add_column("")
    table.add_column("your config", justify="right", overflow="fold")
    sides = [comparison.baseline]
    if comparison.best is not comparison.baseline and comparison.best.config != comparison.baseline.config:
        table.add_column(best_label or comparison.label, justify="right", overflow="fold")
        sides.append(comparison.best)
    best, own = comparison.best.config, comparison.baseline.config
    always = shown_always(prepared.space) if prepared is not None else frozenset[str]()
    differing = {name for name, value in best.items() if own.get(name) != value}
    shown = {name: value for name, value in best.items() if name in differing | always} if differing else best
    for name, value in shown.items():
        values = [Text(value_text(own.get(name, "-"))), Text(value_text(value), "bold" if name in differing else "")]
        table.add_row(Text(short_name(name, best), "bold"), *values[: len(sides)])
    batches = [side.global_batch or 0 for side in sides]
    if all(batches) and len({*batches}) > 1:
        table.add_row(Text("global batch", "bold"), *(Text(f"{batch:,}", "bold") for batch in batches))
    if len(shown) < len(best):
        same = len(best) - len(shown)
        table.add_row(f"{same} other{'s' if same > 1 else ''}", *["the same"] * len(sides))
    table.add_section()
    cells: list[tuple[str, Callable[[Repeats], str]]] = [
        ("median", partial(_median_text, objective=objective)),
        ("range", partial(_range_text, objective=objective)),
        *((text, partial(_part_text, part=part)) for part, text in PART_TEXTS.items()),
        ("uncertainty of one launch", _uncertainty_text),
        ("launches", lambda side: str(len(side.throughputs))),
    ]
    for heading, cell in cells:
        texts = [cell(side) for side in sides]
        if any(texts):
            table.add_row(heading, *texts)
    return table


def _median_text(repeats: Repeats, *, objective: str) -> str:
    return worth_text(repeats.middle, objective, uncertainty=_uncertainty(repeats))


def _range_text(repeats: Repeats, *, objective: str) -> str:
    uncertainty = _uncertainty(repeats)
    ends = [worth_text(end(repeats.throughputs), objective, uncertainty=uncertainty) for end in (min, max)]
    return " to ".join(reversed(ends) if objective == SOONEST_DONE else ends)


def _part_text(repeats: Repeats, *, part: str) -> str:
    seconds = repeats.time_to_done.get(part)
    return "" if seconds is None else seconds_text(seconds)


def _uncertainty_text(repeats: Repeats) -> str:
    return interval_text(_uncertainty(repeats))


def _uncertainty(repeats: Repeats) -> float:
    """Return the usual uncertainty of one of the launches; 0 if unknown."""
    return median(repeats.uncertainties) if repeats.uncertainties else 0.0


def open_display(console: Console, prepared: Prepared) -> Display:
    """Return the display that fits the console."""
    return Live(console, prepared) if console.is_terminal else Display(console, prepared)


class Display(AbstractContextManager["Display"]):
    """Display for files and pipes: one plain line for each launch that begins or ends."""

    _shows_begins = True  # of launches

    def __init__(self, console: Console, prepared: Prepared) -> None:
        self._console = console
        self._prepared = prepared
        self._was_crowded = False  # a launch before this one, in this process

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return None

    def show(self, step: Step) -> None:
        """Show one step of the tune."""
        width = self._console.width
        if isinstance(step, Begun):
            self._lines(_begun_lines(step, self._prepared, width))
            for line in legality_lines(self._bound_space()):
                self._lines(broken_lines(line, width, indent=_INDENT))
        elif isinstance(step, Notice):
            self._lines(broken_lines(step.text, width, indent=_INDENT))
        elif isinstance(step, Launching):
            self._lines(_launching_lines(step.number, step.purpose, step.suggestion.config, self._prepared, width))
        elif isinstance(step, Ended):
            if not self._shows_begins:
                self._lines(_launching_lines(step.number, step.purpose, step.trial.config, self._prepared, width))
            number = f"{step.number:3d} -> " if self._shows_begins else _INDENT
            is_first = not self._was_crowded and step.throughput is not None and crowded_share(step.trial) > 0
            self._was_crowded |= is_first
            text = _ended_text(step, self._prepared, explains=is_first)
            self._lines(wrapped(text, width, first=number, indent=_INDENT))
            if is_first:
                least = least_gain_text(step.trial, self._prepared.request.repeats_made, objective=step.objective)
                self._lines(wrapped(least, width, first=_INDENT, indent=_INDENT))

    def _bound_space(self) -> SearchSpace:
        prepared = self._prepared
        return prepared.space.bind(workload=prepared.workload, current=prepared.current)

    def _lines(self, lines: Sequence[str]) -> None:
        self._console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)


class Live(Display):
    """Display for terminals: a line per ended launch, above a live table of the launches in flight."""

    _shows_begins = False  # the table of launches in flight does

    def __init__(self, console: Console, prepared: Prepared) -> None:
        from rich.live import Live as RichLive

        super().__init__(console, prepared)
        self._table: RenderableType = ""
        self._last: Waiting | None = None
        self._work, self._since = "", time.monotonic()
        self._live = RichLive(
            console=console, get_renderable=self._shown, refresh_per_second=_REFRESHES_PER_S, transient=True
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, step: Step) -> None:
        """Show one step of the tune."""
        self._since = time.monotonic()
        self._work = f"submitting launch {step.number}" if isinstance(step, Launching) else _DECIDING
        if isinstance(step, Waiting):
            self._work = ""
            self._fill(step)
            self._live.refresh()
        elif not isinstance(step, Launching):  # it appears in the table
            if isinstance(step, Ended) and self._last is not None:
                still = tuple(pending for pending in self._last.in_flight if pending.number != step.number)
                self._fill(replace(self._last, in_flight=still))
            super().show(step)

    def _fill(self, step: Waiting) -> None:
        self._last = step
        make = partial(waiting_table, step, self._prepared.space.statistic, self._prepared.current)
        self._table = fitted(self._console, make, _LESS_IMPORTANT, flexible="config") if step.in_flight else ""

    def _shown(self) -> RenderableType:
        """Return the launches in flight, and what the tune is busy with, once that takes long."""
        seconds = time.monotonic() - self._since
        if not self._work or seconds < DELAY_S:
            return self._table
        work = Text(f"{self._work}: {seconds:.0f} s")
        return Group(self._table, work) if self._table else work


def waiting_table(step: Waiting, statistic: str, current: Config, without: Collection[str] = ()) -> Table:
    """Return a table of the launches in flight; its caption holds the best throughput and the remaining budget.

    Args:
        step: the launches.
        statistic: of the throughput over steps.
        current: the user's own config.
        without: names of the columns that are left out, where the table would be too wide.
    """
    best = "nothing measured yet"
    if step.best is not None:
        value = f"{worth_text(step.best, step.objective)} {_unit(step.objective, statistic)}"
        best = f"{best_word(step.objective)} seen {value}"
    about = f", about {_duration_text(step.time_left_s)}" if step.time_left_s is not None else ""
    table = Table(box=None, caption=f"{best}; {step.budget_left}{about}", caption_justify="left")
    names = [name for name in _COLUMNS if name not in without]
    for name in names:
        side: JustifyMethod = "right" if name in {"time", "predicted"} else "left"
        table.add_column(name, no_wrap=True, overflow="ellipsis", justify=side)
    for pending in step.in_flight:
        cells = [
            f"{pending.number}",
            pending.purpose,
            ", ".join(config_changes(pending.config, current)) or "your config",
            pending.phase,
            _duration_text(pending.since_s),
        ]
        doubt = interval_text(pending.uncertainty)
        measured = " ".join(
            filter(None, (_throughput_text(pending.measured, step.objective, pending.uncertainty), doubt))
        )
        known = dict(zip(_COLUMNS, [*cells, _throughput_text(pending.expected, step.objective), measured], strict=True))
        table.add_row(*(Text(known[name]) for name in names))
    return table


def _begun_lines(step: Begun, prepared: Prepared, width: int) -> list[str]:
    request = prepared.request
    verb = "resuming" if step.resumed else "starting"
    done = f" after {step.launches} launches ({step.in_flight} in flight)" if step.resumed else ""
    parallel = f", {step.at_a_time} at a time" if step.at_a_time > 1 else ""
    program = f"tuning {prepared.component.launch.program} on {request.scheduler}: {request.budget}{parallel}"
    return [
        *wrapped(program, width, indent=_INDENT),
        f"store: {mask(prepared.store_url)}",
        f"{verb} {step.tune_id}{done}",
        *joined(config_values(prepared.current), width, first="your config: ", indent=_INDENT),
    ]


def _launching_lines(number: int, purpose: str, config: Config, prepared: Prepared, width: int) -> list[str]:
    """Return the lines of a launch: its number, its purpose and its difference from the user's own config."""
    changes = config_changes(config, prepared.current) or ["your config"]
    return joined(changes, width, first=f"{number:3d} {purpose:8s} ", indent=" " * 13)


def _ended_text(step: Ended, prepared: Prepared, *, explains: bool) -> str:
    """Return the outcome of a launch: its throughput, in that of the user's own config, and as predicted; or why not.

    A crowded launch ``explains`` what ran beside it, or says only that it was crowded.
    """
    if step.throughput is None:
        found = "" if step.trial.reason.startswith(NO_RESULT) else f"{step.trial.state}".replace("_", " ")
        return ": ".join(filter(None, (found, step.trial.reason)))
    uncertainty = step.trial.uncertainty(step.objective)
    number = partial(worth_text, objective=step.objective, uncertainty=uncertainty)
    unit = _unit(step.objective, prepared.space.statistic)
    texts = [
        f"{number(step.throughput)} {unit} {interval_text(uncertainty)}".rstrip(),
        _against_own(step, prepared),
        f"predicted {number(step.expected)}" if step.expected is not None else "",
        *(f"{short_name(name)} {text}" for name, text in differing_values(step.trial).items()),
        (crowding_text(step.trial) if explains else "crowded") if crowded_share(step.trial) else "",
    ]
    return ", ".join(filter(None, texts))


def _against_own(step: Ended, prepared: Prepared) -> str:
    is_own = not config_changes(step.trial.config, prepared.current)
    if step.own is None or step.throughput is None or is_own:
        return ""
    return f"{step.throughput / step.own:.2f}x your config"


def _unit(objective: str, statistic: str) -> str:
    unit = unit_text(objective).replace("_per_second", "/s").replace("_", " ")
    return f"{unit} {statistic_text(statistic)}".rstrip()


def _throughput_text(value: float | None, objective: str, uncertainty: float = 0.0) -> str:
    return "" if value is None else worth_text(value, objective, uncertainty=uncertainty)


def _duration_text(seconds: float) -> str:
    """Return a duration in words.

    >>> _duration_text(42), _duration_text(600), _duration_text(9000)
    ('42 s', '10 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
