"""Text of the explanation of a command, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.cli.terminal import wrapped
from torchx_cubicml.launch.messages import number_text
from torchx_cubicml.records.value_text import value_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchx_cubicml.advisor.command_explanation.estimates import Estimate
    from torchx_cubicml.advisor.command_explanation.explanation import ChangeForecast, CommandExplanation

_NEGLIGIBLE = 0.01  # share of a total below which a part counts as "other"
_INDENT = "    "


def explanation_lines(explanation: CommandExplanation) -> list[str]:
    """Return the lines of an explanation: facts, parameters, memory, time, changes, and what is unknown."""
    return [
        *_fact_lines(explanation),
        *_parameter_lines(explanation),
        *_memory_lines(explanation),
        *_time_lines(explanation),
        *_change_lines(explanation),
        *_unknown_lines(explanation),
    ]


def fitted_line(line: str, width: int) -> str:
    """Return a line as lines of at most ``width`` characters; a number stays beside its unit."""
    if len(line) <= width:
        return line
    glue, start = "\N{NO-BREAK SPACE}", line[: len(line) - len(line.lstrip())]
    whole = line.lstrip().replace(" %", f"{glue}%").replace(" GiB", f"{glue}GiB")
    return "\n".join(wrapped(whole, width, first=start, indent=start + _INDENT)).replace(glue, " ")


def _fact_lines(explanation: CommandExplanation) -> list[str]:
    known = explanation.known
    lines = []
    if known.unread:
        lines.append(f"The source of {known.unread} cannot be read here: its defaults and its model are not known.")
    lines.append("Read from the command, before any launch:")
    width = max(map(len, known.facts), default=0)
    for fact, value in known.facts.items():
        note = ", assumed" if fact in known.assumed else ""
        lines.append(f"{_INDENT}{fact.ljust(width)}  {value_text(value)}  ({known.sources[fact]}{note})")
    return lines


def _parameter_lines(explanation: CommandExplanation) -> list[str]:
    found = explanation.parameters
    if found is None:
        return ["Parameters: not known."]
    if found.low == found.high:
        return [f"Parameters: {found.middle:,.0f} ({found.basis})"]
    return [f"Parameters: {found.low:,.0f} to {found.high:,.0f} ({found.basis}; the architecture is not told)"]


def _memory_lines(explanation: CommandExplanation) -> list[str]:
    peak = explanation.peak_gib
    if peak is None:
        return ["Memory: not known."]
    lines = [f"Peak memory of the fullest rank: {_text(peak, 'GiB')}"]
    lines += _part_lines(explanation.memory_gib, "GiB")
    if explanation.fits is not None and explanation.device_gib is not None:
        lines.append(
            f"{_INDENT}fits into {number_text(explanation.device_gib)} GiB with a probability of "
            f"{_percent(explanation.fits)}"
        )
    return lines


def _time_lines(explanation: CommandExplanation) -> list[str]:
    step, rate = explanation.step_s, explanation.throughput
    if explanation.why_no_step:
        return [f"Time of a step: not told, for {explanation.why_no_step}. Launches of this program narrow it."]
    if step is None or rate is None:
        return ["Time of a step: not known."]
    unit, factor = ("ms", 1000.0) if step.middle < 1.0 else ("s", 1.0)
    lines = [f"Time of a step: {_text(step.times(factor), unit)}"]
    lines += _part_lines({name: part * factor for name, part in explanation.seconds.items()}, unit)
    work = explanation.unit.partition("_per_")[0]
    lines.append(f"Throughput of the job: {_text(rate, f'{work}/s')}")
    if explanation.mfu is not None:
        lines.append(f"MFU: {_text(explanation.mfu.times(100.0), '%')}")
    if explanation.bound:
        lines.append(f"It runs into: {explanation.bound}")
    return lines


def _change_lines(explanation: CommandExplanation) -> list[str]:
    if not explanation.changes:
        return []
    return ["Changes that would tell most:", *(f"{_INDENT}{_change_text(each)}" for each in explanation.changes)]


def _change_text(change: ChangeForecast) -> str:
    names = [
        f"{name} {value_text(change.before[name]) if change.before[name] is not None else '(unknown)'}"
        f" -> {value_text(after)}"
        for name, after in change.after.items()
    ]
    gain = change.gain
    text = f"{', '.join(names)}: {gain.middle:.2f}x the throughput ({gain.low:.2f}x to {gain.high:.2f}x)"
    if change.peak_gib is not None:
        text += f", {number_text(change.peak_gib.middle)} GiB"
    if change.fits is not None:
        text += f", fits with {_percent(change.fits)}"
    return f"{text}{f'; {change.note}' if change.note else ''}"


def _unknown_lines(explanation: CommandExplanation) -> list[str]:
    if not explanation.unknown:
        return []
    lines = ["Not known (state it with --fact NAME=VALUE, the device with --device NAME):"]
    return [*lines, *(f"{_INDENT}{fact}: {why}" for fact, why in explanation.unknown.items())]


def _part_lines(parts: Mapping[str, float], unit: str) -> list[str]:
    total = sum(parts.values())
    shown = {name: part for name, part in parts.items() if part >= _NEGLIGIBLE * total}
    width = max(map(len, shown), default=0)
    lines = [
        f"{_INDENT}{name.ljust(width)}  {number_text(part)} {unit}"
        for name, part in sorted(shown.items(), key=lambda each: -each[1])
    ]
    other = total - sum(shown.values())
    return [*lines, f"{_INDENT}{'other'.ljust(width)}  {number_text(other)} {unit}"] if other > 0.0 else lines


def _text(estimate: Estimate, unit: str) -> str:
    low, middle, high = (number_text(float(f"{value:.2g}")) for value in _ends(estimate))
    return f"{middle} {unit} (80 % interval: {low} to {high}; {estimate.basis})"


def _ends(estimate: Estimate) -> tuple[float, float, float]:
    return estimate.low, estimate.middle, estimate.high


def _percent(probability: float) -> str:
    """Return a probability in percent; never 0 or 100, which no forecast deserves.

    >>> _percent(0.9999), _percent(0.5), _percent(0.0)
    ('more than 99 %', '50 %', 'less than 1 %')
    """
    if probability > 0.99:
        return "more than 99 %"
    return "less than 1 %" if probability < 0.01 else f"{100.0 * probability:.0f} %"
