"""Text of the messages that a launch prints to stderr."""

from __future__ import annotations

import math
from itertools import groupby
from typing import TYPE_CHECKING

from torchx_cubicml.records.job_time import seconds_text
from torchx_cubicml.records.measurement import MEDIAN
from torchx_cubicml.records.objective_units import OBJECTIVES, PER_COST, SOONEST_DONE
from torchx_cubicml.records.redaction import mask
from torchx_cubicml.space.spelling import spell

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torchx_cubicml.launch import Launch
    from torchx_cubicml.records.measurement import Measurement
    from torchx_cubicml.records.values import Config, Value
    from torchx_cubicml.space import SearchSpace

KEPT = "keeping your arguments"
NOT_RECORDED = "running your command as typed, without recording it"
_LONGEST_LINE = 400  # characters; a library's error can fill a page
_LONGEST_VALUE = 60
_TWO_SIDED_90 = 1.645  # standard deviations of a normal distribution
_DIGITS_OF_INTERVAL = 3.0  # a unit of the last digit that is shown is at most a third of the interval
_LEAST_WIDTH = 1e-15  # of an interval: a float has no more digits
_NEGLIGIBLE = 0.005  # log width below which an interval is not shown
_SHOWN_AS_FACTOR = 0.5  # log width from which a factor is clearer than plus and minus
_STATISTIC_TEXTS = {
    MEDIAN: "at the median step",
    "p10": "at a slow step (nine in ten are faster)",
    "p90": "at a fast step (nine in ten are slower)",
}


def message_line(text: str) -> str:
    """Return one message line: prefixed, secrets masked, newlines and control characters replaced, excess cut.

    >>> message_line("store s3://key:secret@bucket is slow")
    'torchx-cubicml: store s3://***@bucket is slow'
    """
    line = "".join(letter if letter.isprintable() else "?" for letter in " ".join(mask(text).split()))
    return f"torchx-cubicml: {line if len(line) <= _LONGEST_LINE else f'{line[: _LONGEST_LINE - 3]}...'}"


def change_rows(space: SearchSpace, before: Config, after: Config) -> list[tuple[str, str]]:
    """Return name and ``old -> new`` of every parameter that changes, with its binding."""
    rows: list[tuple[str, str]] = []
    for parameter in space.parameters:
        old, new = before.get(parameter.name), after.get(parameter.name)
        if old != new and new is not None and parameter.binding is not None:
            change = f"{short(old)} -> {short(new)}" if old is not None else short(new)
            rows.append((parameter.label or parameter.name, f"{change}  ({parameter.binding.name})"))
    return rows


def batches_text(batches: Iterable[object]) -> str:
    """Return the sentence that configs have different global batch sizes; empty where they are equal or unknown.

    >>> batches_text([32, None, 8]), batches_text([8, 8])
    ('They train with different global batch sizes: 8, 32.', '')
    """
    known = sorted({batch for batch in batches if isinstance(batch, int)})
    return f"They train with different global batch sizes: {', '.join(map(str, known))}." if len(known) > 1 else ""


def changes_in_job(launch: Launch) -> list[str]:
    """Return the changes of a launch that no command line can express: keys of config files, and hooks.

    >>> from torchx_cubicml.launch import Launch
    >>> changes_in_job(Launch(program="x.py", files={"--config": {("zero", "stage"): 3}}, hooks={"fsdp": "NO_SHARD"}))
    ['zero.stage = 3 in the file of --config', 'NO_SHARD by the hook fsdp']
    """
    keys = [
        f"{'.'.join(key)} = {short(value)} in the file of {file}"
        for file, values in launch.files.items()
        for key, value in values.items()
    ]
    return keys + [f"{short(value)} by the hook {name}" for name, value in launch.hooks.items()]


def short(value: Value) -> str:
    """Return a value as short text; runs of equal entries are counted.

    >>> short(("FULL_SHARD", "FULL_SHARD", "NO_SHARD")), short(4)
    ('FULL_SHARD x2, NO_SHARD', '4')
    """
    if not isinstance(value, tuple):
        text = spell(value)
    else:
        runs = [(entry, len(list(group))) for entry, group in groupby(map(spell, value))]
        text = ", ".join(f"{entry} x{count}" if count > 1 else entry for entry, count in runs)
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 3]}..."


def aligned(rows: Sequence[tuple[str, str]]) -> list[str]:
    """Return aligned lines of two columns, indented under the line that introduces them."""
    width = max((len(name) for name, _ in rows), default=0)
    return [f"    {name:<{width}}  {text}" for name, text in rows]


def gain_text(prediction: Mapping[str, float | None]) -> str:
    """Return a predicted gain with its 80 % interval, in per cent of the user's own config.

    >>> gain_text({"gain": 1.234, "gain_low": 1.1, "gain_high": 1.38})
    '+23 % (80 % interval: +10 % to +38 %)'
    """
    gain, low, high = (prediction.get(name) for name in ("gain", "gain_low", "gain_high"))
    if gain is None or low is None or high is None:
        return "unknown: your own config ran out of memory"
    expected, least, most = (f"{100 * (value - 1):+.0f} %" for value in (gain, low, high))
    return f"{expected} (80 % interval: {least} to {most})"


def number_text(value: float, *, uncertainty: float = 0.0) -> str:
    """Return a throughput as a number: whole from a hundred on, else with three digits.

    Args:
        value: the throughput.
        uncertainty: standard error of its logarithm; digits that it makes meaningless become zeros. 0 if unknown.

    >>> number_text(41_000.4), number_text(12.34), number_text(0.0123)
    ('41,000', '12.3', '0.0123')
    >>> [number_text(41_234.0, uncertainty=each) for each in (0.0001, 0.005, 0.05, 2.0)]
    ['41,234', '41,200', '41,000', '40,000']
    """
    unit = value * min(max(_TWO_SIDED_90 * uncertainty, _LEAST_WIDTH), 1.0) / _DIGITS_OF_INTERVAL
    if uncertainty > 0.0 and 0.0 < unit < math.inf:
        value = round(value, -math.floor(math.log10(unit)))
    return f"{value:,.0f}" if value >= 100.0 else f"{value:.3g}"


def rate_text(value: float, objective: str, *, uncertainty: float = 0.0) -> str:
    """Return the throughput of a whole job with its unit; for ``soonest_done`` the time until it is done.

    The uncertainty is that of ``number_text``.

    >>> rate_text(41_000.0, "tokens_per_second"), rate_text(12.34, "samples_per_device_hour")
    ('41,000 tokens/s', '12.3 samples/device hour')
    >>> rate_text(0.005, "soonest_done")
    'done in 3 min 20 s'
    """
    if objective == SOONEST_DONE:
        return f"done in {worth_text(value, objective)}"
    work, _, per = objective.partition("_per_")
    return f"{number_text(value, uncertainty=uncertainty)} {work}/{'s' if per == 'second' else per.replace('_', ' ')}"


def measured_rate_text(measurement: Measurement, name: str = "{}") -> str:
    """Return the throughput of a measurement in the first known unit, with its unit; empty if none is known.

    Args:
        measurement: of a launch.
        name: pattern of the field, such as ``{}_overall``, for each of ``OBJECTIVES``.

    >>> from torchx_cubicml.records.measurement import Measurement
    >>> measured_rate_text(Measurement(samples_per_second=1834.0, relative_error=0.024))
    '1,830 samples/s'
    """
    found = ((objective, getattr(measurement, name.format(objective), None)) for objective in OBJECTIVES)
    uncertainty = measurement.uncertainty
    rates = (rate_text(value, each, uncertainty=uncertainty) for each, value in found if value is not None)
    return next(rates, "")


def per_cost_text(objective: str) -> str:
    """Return the words after a gain that is not one of a throughput of the whole job; else empty.

    >>> per_cost_text("tokens_per_device_hour"), per_cost_text("tokens_per_second"), per_cost_text("soonest_done")
    ('in tokens per device hour', '', 'in jobs per day')
    """
    if objective == SOONEST_DONE:
        return "in jobs per day"
    return f"in {objective.replace('_', ' ')}" if objective in PER_COST else ""


def worth_text(value: float, objective: str, *, uncertainty: float = 0.0) -> str:
    """Return a value of an objective without its unit; for ``soonest_done`` the time until the job is done.

    The uncertainty is that of ``number_text``.

    >>> worth_text(41_000.0, "tokens_per_second"), worth_text(0.005, "soonest_done")
    ('41,000', '3 min 20 s')
    """
    return seconds_text(1.0 / value) if objective == SOONEST_DONE else number_text(value, uncertainty=uncertainty)


def unit_text(objective: str) -> str:
    """Return the words after such a value.

    >>> unit_text("tokens_per_second"), unit_text("soonest_done")
    ('tokens_per_second', 'until done')
    """
    return "until done" if objective == SOONEST_DONE else objective


def title_text(objective: str) -> str:
    """Return the title of a column of such values.

    >>> title_text("tokens_per_second"), title_text("soonest_done")
    ('tokens_per_second', 'time until done')
    """
    return "time until done" if objective == SOONEST_DONE else objective


def better_word(objective: str) -> str:
    """Return the word for a config with a higher value: only one of higher throughput is faster.

    >>> better_word("tokens_per_second"), better_word("tokens_per_currency"), better_word("soonest_done")
    ('faster', 'better', 'better')
    """
    return "faster" if objective in OBJECTIVES else "better"


def best_word(objective: str) -> str:
    """Return the word for the config with the highest value.

    >>> best_word("tokens_per_second"), best_word("tokens_per_currency")
    ('fastest', 'best')
    """
    return "fastest" if objective in OBJECTIVES else "best"


def interval_text(uncertainty: float) -> str:
    """Return the 90 % interval around a throughput; empty if the uncertainty is unknown or negligible.

    >>> interval_text(0.024), interval_text(0.75), interval_text(0.001)
    ('± 4 %', 'within a factor of 3.4', '')
    """
    width = _TWO_SIDED_90 * uncertainty
    if width < _NEGLIGIBLE:
        return ""
    return (
        f"± {100 * width:.{0 if width >= 0.02 else 1}f} %"
        if width < _SHOWN_AS_FACTOR
        else f"within a factor of {math.exp(width):.1f}"
    )


def statistic_text(statistic: str) -> str:
    """Return the words for a statistic over steps; empty for the mean of all steps.

    >>> statistic_text("p50"), statistic_text("mean")
    ('at the median step', '')
    """
    return _STATISTIC_TEXTS.get(statistic, "")


def first_few(lines: Iterable[str], *, most: int = 3) -> list[str]:
    """Return the first lines, and a line that counts the omitted ones."""
    lines = list(lines)
    omitted = [f"and {len(lines) - most} more of this kind"] if len(lines) > most else []
    return [*lines[:most], *omitted]
