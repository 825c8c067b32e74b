"""Section of two objectives: the configs that no other one surpasses in both, as a figure and as a table."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from torchx_cubicml.advisor.pareto_front import frontier_of, measured_points
from torchx_cubicml.cli.frontier_table import frontier_lines
from torchx_cubicml.launch.messages import interval_text, number_text
from torchx_cubicml.predictors.features.history import config_key
from torchx_cubicml.predictors.measurement_error import repeat_noise
from torchx_cubicml.records.config_changes import changed_values
from torchx_cubicml.records.objective_units import PER_CURRENCY, PER_DEVICE_HOUR, PER_JOULE, RATES, counted_rate
from torchx_cubicml.records.redaction import printable
from torchx_cubicml.records.value_text import config_text
from torchx_cubicml.report.figures.objective_front import FRONT, OTHER, OWN, objective_front
from torchx_cubicml.report.markup import Html, element, joined
from torchx_cubicml.report.sections.figures import figures_html
from torchx_cubicml.report.sections.small_table import small_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.advisor.pareto_front import Frontier, FrontierPoint
    from torchx_cubicml.cli.report_sections.view import WorkloadView
    from torchx_cubicml.records.values import Config

_MOST_ROWS = 20
_MOST_DRAWN = 300  # configs beside the frontier
_MOST_LETTERS = 100  # of a config beside a point
_ONE_SIDED_90 = 1.2816  # standard deviations: the ends of an 80 % interval
_FEWEST = 2  # configs
_ALIKE = 1e-9  # relative difference of ratios that tells two objectives apart


def section(view: WorkloadView) -> Html:
    """Return the figure and the table; nothing where the configs were not measured in two objectives."""
    points, frontier = _frontier(view)
    if frontier is None:
        return Html("")
    objectives = frontier.objectives
    figures = Html("")
    if view.colours is not None:
        units = tuple(name.replace("_", " ") for name in objectives)
        rows = _rows(points, frontier)
        drawn = objective_front(rows, units=(units[0], units[1]), left_out=len(points) - len(rows))
        figures = figures_html([drawn] if drawn else [], colours=view.colours, name=f"front-{view.place}")
    how = (
        f"Measured {units_text(objectives)} of {len(points):,} configs: geometric means over their launches. No config "
        "on the frontier is surpassed in both."
    )
    notes = [element("p", text, class_="note") for text in (how, *frontier_lines(frontier))]
    return joined(element("h3", "Two objectives"), *notes, figures, _table(frontier, current=view.own))


def data(view: WorkloadView) -> dict[str, Any] | None:
    """Return the frontier as JSON values; ``None`` without one."""
    _, frontier = _frontier(view)
    return frontier.to_json() if frontier is not None else None


def _frontier(view: WorkloadView) -> tuple[list[FrontierPoint], Frontier | None]:
    """Return the configs measured in both objectives, and their frontier; ``None`` for fewer than two."""
    objectives = _objectives(view)
    if objectives is None:
        return [], None
    noise = repeat_noise(view.trials, objective=objectives[0], elsewhere=view.elsewhere)
    points = _points(view, objectives, noise=noise)
    if len(points) < _FEWEST:
        return points, None
    return points, frontier_of(points, objectives, current=view.own)


def units_text(objectives: tuple[str, str]) -> str:
    """Return both objectives in words.

    >>> units_text(("tokens_per_second", "tokens_per_joule"))
    'tokens per second and tokens per joule'
    """
    return " and ".join(name.replace("_", " ") for name in objectives)


def _objectives(view: WorkloadView) -> tuple[str, str] | None:
    """Return the two of the space file; else throughput and what the launches differ in: energy, price or devices."""
    if view.space is not None and view.space.second_objective:
        return view.space.objective, view.space.second_objective
    rate = counted_rate(view.objective)
    if rate not in RATES:
        return None
    others = [name for names in (PER_JOULE, PER_CURRENCY, PER_DEVICE_HOUR) for name in names]
    for name in others:
        if counted_rate(name) == rate and _tells_apart(view, rate, name):
            return rate, name
    return None


def _tells_apart(view: WorkloadView, rate: str, other: str) -> bool:
    """Return whether two configs at least were measured in both, and one objective is no multiple of the other."""
    pairs = [(trial.throughput(rate), trial.throughput(other), trial) for trial in view.trials if trial.config]
    known = [(first / second, trial) for first, second, trial in pairs if first is not None and second is not None]
    ratios = [ratio for ratio, _ in known]
    if not ratios or max(ratios) <= min(ratios) * (1.0 + _ALIKE):
        return False
    return len({config_key(trial.config) for _, trial in known}) >= _FEWEST


def _points(view: WorkloadView, objectives: tuple[str, str], *, noise: float) -> list[FrontierPoint]:
    return measured_points((trial for trial in view.trials if trial.config), objectives, noise=noise)


def _rows(points: Sequence[FrontierPoint], frontier: Frontier) -> list[dict[str, Any]]:
    """Return a row for each config; the own one says so wherever it lies."""
    listed = {config_key(point.config): point for point in frontier.points}
    rows = []
    for point in points:
        known = listed.get(config_key(point.config))
        is_best = known is not None and known.is_best
        kind = OWN if known is not None and known.is_own else FRONT if is_best else OTHER
        factor = math.exp(_ONE_SIDED_90 * point.doubt)
        values = [
            f"{number_text(value)} {name.replace('_', ' ')}"
            for value, name in zip(point.values, frontier.objectives, strict=True)
        ]
        ends = {
            f"{end}_{name}": value * by
            for name, value in zip(("first", "second"), point.values, strict=True)
            for end, by in (("low", 1.0 / factor), ("high", factor))
        }
        label = "; ".join(filter(None, (kind, *values, config_text(point.config)[:_MOST_LETTERS])))
        first, second = point.values
        rows.append({"first": first, "second": second, **ends, "kind": kind, "is_best": is_best, "label": label})
    others = [row for row in rows if row["kind"] == OTHER]
    return [row for row in rows if row["kind"] != OTHER] + others[:: math.ceil(len(others) / _MOST_DRAWN) or 1]


def _table(frontier: Frontier, *, current: Config | None) -> Html:
    """Return the configs on the frontier and the own one, highest in the first objective first."""
    has_own = any(point.ratios for point in frontier.points)
    names = [name.replace("_", " ") for name in frontier.objectives]
    numbers = [each for name in names for each in ((name, f"{name} over yours") if has_own else (name,))]
    rows = [_row(point, current, has_own=has_own) for point in frontier.points[:_MOST_ROWS]]
    table = small_table(["config", *numbers, "± of both", "launches"], rows, label="Frontier of two objectives")
    left_out = len(frontier.points) - len(rows)
    note = [element("p", f"{left_out:,} more lie on the frontier.", class_="note")] if left_out else []
    return joined(table, *note)


def _row(point: FrontierPoint, current: Config | None, *, has_own: bool) -> list[str]:
    changed = changed_values(point.config, current or {})
    config = "your own config" if point.is_own else printable(config_text(changed or point.config))
    notes = [
        "surpassed in both" if not point.is_best else "",
        "surpassed but for the noise" if point.may_be_surpassed else "",
    ]
    texts = []
    for side, value in enumerate(point.values):
        texts += [number_text(value), *([f"{point.ratios[side]:.2f}x" if point.ratios else "-"] if has_own else [])]
    texts += [interval_text(point.doubt).removeprefix("± ") or "-", f"{point.launches:,}"]
    small = [element("small", note) for note in notes if note]
    return [joined(config, *small), *texts]
