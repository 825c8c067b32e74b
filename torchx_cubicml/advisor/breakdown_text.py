"""Text and JSON of breakdowns: two small tables, of the time of a step and of memory, with a column per config."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from torchx_cubicml.advisor.command_explanation.estimates import WIDEST

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchx_cubicml.advisor.breakdown import Basis, Breakdowns

_NEGLIGIBLE = 0.01  # share of a total below which a part is counted as "other" in each column
_ABREAST = 4  # configs side by side, which fit 80 columns; others stand below
_SHORT_S = 1.0  # longest step that is shown in milliseconds
# An estimate that is missed by a share ``e`` may be off by a factor of ``1 / (1 - e)``. Of a normal logarithm that half
# of the launches miss by more, the 80 % interval spans ``WIDEST``: wider ones are not told by ``explain`` either. Its
# ends are 2 * 1.2816 standard deviations apart, and the median error is 0.6745 of one.
_MOST_ERROR = 1.0 - WIDEST ** (-0.6745 / (2.0 * 1.2816))


def breakdown_lines(breakdowns: Breakdowns) -> list[str]:
    """Return the lines of both tables; one line with the reason where no formula covers the workload."""
    if not breakdowns.of:
        return [f"No estimate of where time and memory go: {_reason(breakdowns.lacking)}."]
    longest = max(each.step_s for each in breakdowns.of.values())
    unit, factor = ("milliseconds", 1000.0) if longest < _SHORT_S else ("seconds", 1.0)
    lines = _held_back("the time of a step", breakdowns.time)
    if not lines:
        lines = [f"Where the time of a step goes, in {unit} ({basis_text(breakdowns, 'step')}):"]
        steps = {name: (each.seconds, each.measured_s) for name, each in breakdowns.of.items()}
        lines += _table(steps, factor=factor)
    sizes = {name: (each.memory_gib, each.measured_gib) for name, each in breakdowns.of.items() if each.memory_gib}
    if sizes and (held_back := _held_back("the memory of a device", breakdowns.memory)):
        lines += held_back
    elif sizes:
        lines.append(f"Where the memory of a device goes, in GiB ({basis_text(breakdowns, 'peak')}):")
        lines += _table(sizes, factor=1.0)
    return [*lines, *unplanned_lines(breakdowns), *breakdowns.first_launch.lines]


def _held_back(what: str, basis: Basis) -> list[str]:
    """Return the line on an estimate that misses its launches by so much that it is not told; none for others."""
    if (basis.error or 0.0) <= _MOST_ERROR:
        return []
    return [f"No estimate of where {what} goes: its median error on launches is {100.0 * (basis.error or 0.0):.0f} %."]


def unplanned_lines(breakdowns: Breakdowns) -> list[str]:
    """Return a line for each config that leaves embedding tables to a planner whose choice no launch has shown."""
    lines = []
    for name, count in breakdowns.unplanned.items():
        tables = "1 table" if count == 1 else f"{count} tables"
        lines.append(
            f"Unknown in {name}: the planner's choice for {tables}, which no launch has shown; estimated as if spread "
            "evenly over the ranks."
        )
    return lines


def basis_text(breakdowns: Breakdowns, total: str) -> str:
    """Return the launches that an estimate rests on, and its error on them, in words.

    >>> from torchx_cubicml.advisor.breakdown import Basis, Breakdowns
    >>> known = Breakdowns(of={}, time=Basis(n_launches=12, error=0.031), memory=Basis(n_launches=1, error=0.0))
    >>> basis_text(known, "step"), basis_text(known, "peak")  # doctest: +NORMALIZE_WHITESPACE
    ('estimated from the step of 12 launches, with a median error of 3 %; parts are not measured',
     'estimated from the peak of 1 launch; parts are not measured')
    >>> basis_text(Breakdowns(of={}, stand_in="h100"), "step")
    "estimated from the formulas' defaults, as if the device were an h100"
    """
    basis = breakdowns.time if total == "step" else breakdowns.memory
    if not basis.n_launches:
        device = f", as if the device were an {breakdowns.stand_in}" if breakdowns.stand_in else ""
        n_sources = len(breakdowns.first_launch.sources) if total == "step" else 0
        constants = f"formulas and {n_sources} public sources" if n_sources else "formulas' defaults"
        return f"estimated from the {constants}{device}"
    launches = "1 launch" if basis.n_launches == 1 else f"{basis.n_launches} launches"
    launches += "" if basis.are_own else " of other workloads"
    # A single launch is met by calibration, whatever the formulas are worth.
    is_told = basis.error is not None and basis.n_launches > 1
    error = f", with a median error of {100 * (basis.error or 0.0):.0f} %" if is_told else ""
    return f"estimated from the {total} of {launches}{error}; parts are not measured"


def breakdown_json(breakdowns: Breakdowns) -> dict[str, object]:
    """Return everything that is known of the breakdowns as JSON values."""
    return {
        "configs": {
            name: {
                "step_s": each.step_s,
                "seconds": dict(each.seconds),
                "hidden_seconds": dict(each.hidden),
                "measured_step_s": each.measured_s,
                "measured_share_outside_steps": each.measured_outside,
                "peak_gib": each.peak_gib if each.memory_gib else None,
                "memory_gib": dict(each.memory_gib),
                "measured_peak_gib": each.measured_gib,
            }
            for name, each in breakdowns.of.items()
        },
        "time_estimated_from": asdict(breakdowns.time),
        "memory_estimated_from": asdict(breakdowns.memory),
        "stand_in_for_unknown_device": breakdowns.stand_in,
        "tables_of_unknown_plan": dict(breakdowns.unplanned),
        "first_launch": breakdowns.first_launch.to_json(),
        "missing": "" if breakdowns.of else _reason(breakdowns.lacking),
    }


def _reason(lacking: Sequence[str]) -> str:
    if not lacking:
        return "the formulas need degrees of parallelism that divide world_size"
    hint = "(a recorded launch or [workload] of the space file may tell)"
    return f"the formulas, which are for transformers and recommenders, lack {', '.join(lacking)} {hint}"


def _table(columns: Mapping[str, tuple[Mapping[str, float], float | None]], *, factor: float) -> list[str]:
    """Return aligned lines: per config what was measured, the estimated total, and its parts; several side by side."""
    names = list(dict.fromkeys(name for parts, _ in columns.values() for name in parts))
    shown = [name for name in names if any(_counts(parts, name) for parts, _ in columns.values())]
    rest = [name for name in names if name not in shown]
    has_other = any(parts.get(name, 0.0) > 0.0 for parts, _ in columns.values() for name in rest)
    heads = [
        "",
        "measured",
        "estimated",
        *(name.replace("_", " ") for name in shown),
        *(["other"] if has_other else []),
    ]
    cells = []
    for name, (parts, measured) in columns.items():
        others = [sum(parts.get(part, 0.0) for part in rest)] if has_other else []
        sizes = (sum(parts.values()), *(parts.get(part, 0.0) for part in shown), *others)
        known = "-" if measured is None else _number(factor * measured)
        cells.append([name, known, *(_number(factor * size) for size in sizes)])
    starts = range(0, len(cells), _ABREAST)
    return [line for start in starts for line in _aligned([heads, *cells[start : start + _ABREAST]])]


def _aligned(columns: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of columns of text: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in columns]
    return [
        "    " + "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
        for row in zip(*columns, strict=True)
    ]


def _counts(parts: Mapping[str, float], name: str) -> bool:
    return parts.get(name, 0.0) >= _NEGLIGIBLE * sum(parts.values()) > 0.0


def _number(value: float) -> str:
    """Return a size with three digits.

    >>> _number(1234.4), _number(0.0), _number(0.01234)
    ('1,234', '0', '0.0123')
    """
    return f"{value:,.0f}" if value >= 1000.0 else f"{value:.3g}"
