"""Terminal display of a tune: its tables and lines."""

from __future__ import annotations

from contextlib import AbstractContextManager
from statistics import median
from typing import TYPE_CHECKING, Self

from rich.table import Table
from rich.text import Text

from torchx_cubicml.cli.history import value_text
from torchx_cubicml.launch.messages import doubt_text, statistic_text
from torchx_cubicml.records.redaction import mask
from torchx_cubicml.records.trial import MEAN
from torchx_cubicml.tuner import Begun, Ended, Launching, Waiting

if TYPE_CHECKING:
    from types import TracebackType

    from rich.console import Console

    from torchx_cubicml.space import SearchSpace
    from torchx_cubicml.tuner import Prepared, Step
    from torchx_cubicml.tuner.comparison import Comparison, Repeats


def comparison_table(comparison: Comparison, *, statistic: str = MEAN) -> Table:
    """Return the user's own config beside the best: each parameter, then what was measured."""
    title = f"{comparison.objective} {statistic_text(statistic)}".rstrip()
    table = Table(title=f"{title}, whole job", title_justify="left")
    table.add_column("")
    table.add_column("your command", justify="right", overflow="fold")
    table.add_column("best found", justify="right", overflow="fold")
    for name, value in comparison.best.config.items():
        before = comparison.baseline.config.get(name, "-")
        style = "" if before == value else "bold"
        table.add_row(Text(name, style), Text(value_text(before)), Text(value_text(value), style))
    table.add_section()
    cells = [("median", _middle), ("lowest to highest", _range), ("one launch by itself", _doubt), ("launches", _count)]
    for heading, cell in cells:
        told = cell(comparison.baseline), cell(comparison.best)
        if any(told):
            table.add_row(heading, *told)
    return table


def _middle(repeats: Repeats) -> str:
    return f"{repeats.middle:,.0f}"


def _range(repeats: Repeats) -> str:
    return f"{min(repeats.throughputs):,.0f} to {max(repeats.throughputs):,.0f}"


def _doubt(repeats: Repeats) -> str:
    return doubt_text(median(repeats.uncertainties)) if repeats.uncertainties else ""


def _count(repeats: Repeats) -> str:
    return str(len(repeats.throughputs))


def open_display(console: Console, prepared: Prepared) -> Display:
    """Return the display that fits the console."""
    return Live(console, prepared) if console.is_terminal else Display(console, prepared)


class Display(AbstractContextManager["Display"]):
    """Plain lines: one for each launch that begins or ends."""

    def __init__(self, console: Console, prepared: Prepared) -> None:
        self._console = console
        self._prepared = prepared

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return None

    def show(self, step: Step) -> None:
        """Tell one step."""
        if isinstance(step, Begun):
            self._line(_begun(step, self._prepared))
        elif isinstance(step, Launching):
            self._line(_launching(step))
        elif isinstance(step, Ended):
            self._line(_ended(step, self._prepared.space))

    def _line(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


class Live(Display):
    """The lines of launches that ended, and below them what is in flight, the best so far and what is left."""

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
        """Tell one step."""
        if isinstance(step, Waiting):
            self._live.update(waiting_table(step, self._prepared.space), refresh=True)
        elif not isinstance(step, Launching):  # it appears in the table
            super().show(step)


def waiting_table(step: Waiting, space: SearchSpace) -> Table:
    """Return what is in flight as a table, the rest as its caption."""
    from rich.table import Table
    from rich.text import Text

    from torchx_cubicml.cli.history import config_text

    best = "nothing measured yet" if step.best is None else f"best {step.best:,.0f} {_unit(space)}"
    left = [step.budget_left] if step.time_left_s is None else [step.budget_left, f"about {_span(step.time_left_s)}"]
    table = Table(box=None, caption=f"{best}; {', '.join(left)}", caption_justify="left")
    for name in ("", "why", "config", "state", "for", "predicted", "measured"):
        table.add_column(name, no_wrap=name != "config", justify="right" if name in {"for", "predicted"} else "left")
    for pending in step.in_flight:
        cells = [
            f"{pending.number}",
            pending.purpose,
            config_text(pending.config),
            pending.phase,
            _span(pending.since_s),
        ]
        measured = " ".join(filter(None, (_number(pending.measured), doubt_text(pending.uncertainty))))
        table.add_row(*map(Text, [*cells, _number(pending.expected), measured]))
    return table


def _begun(step: Begun, prepared: Prepared) -> str:
    request = prepared.request
    lead = "goes on with" if step.resumed else "begins"
    done = f" after {step.launches} launches, of which {step.in_flight} are in flight" if step.resumed else ""
    parallel = f", {request.parallel} at a time" if request.parallel > 1 else ""
    return (
        f"tuning {prepared.component.launch.program}: {request.budget} on {request.scheduler}{parallel}, recorded in "
        f"{mask(prepared.store_url)}; {lead} {step.tune_id}{done}"
    )


def _launching(step: Launching) -> str:
    from torchx_cubicml.cli.history import config_text

    hope = step.suggestion.throughput
    expected = "" if hope is None else f", {hope:,.0f} expected"
    return f"{step.number:3d} {step.purpose:8s} {config_text(step.suggestion.config)}{expected}"


def _ended(step: Ended, space: SearchSpace) -> str:
    from torchx_cubicml.cli.history import config_text

    doubt = doubt_text(step.trial.measurement.uncertainty) if step.trial.measurement else ""
    told = "" if step.throughput is None else f"{step.throughput:,.0f} {_unit(space)} {doubt}".rstrip()
    found = told or f"{step.trial.state}"
    hoped = f" ({step.expected:,.0f} expected)" if step.throughput is not None and step.expected is not None else ""
    why = f" ({step.trial.reason})" if step.trial.reason and step.throughput is None else ""
    return f"{step.number:3d}   -> {config_text(step.trial.config)}: {found}{hoped}{why}"


def _unit(space: SearchSpace) -> str:
    return f"{space.objective} {statistic_text(space.statistic)}".rstrip()


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _span(seconds: float) -> str:
    """Return a time in words.

    >>> _span(42), _span(600), _span(9000)
    ('42 s', '10 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
