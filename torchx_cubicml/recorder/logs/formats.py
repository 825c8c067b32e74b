"""What the log lines of well-known trainers say of throughput: a table of formats.

One row per format. Unit and scope stand in the names of the groups (``READINGS``), for they differ: "tokens per second"
is of one device in torchtitan and of the whole job elsewhere. A user's own format comes from the space file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Protocol

from torchx_cubicml.records.bounded_pattern import BoundedPattern

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchx_cubicml.records.log_pattern import LogPattern

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_NUMBER = r"[\d,]*\d(?:\.\d+)?(?:[eE][-+]?\d+)?"
_SPELLED = re.compile(r"(\d+|\d{1,3}(?:,\d{3})+)(\.\d*)?([eE][-+]?\d{1,3})? ?([kKMG]?)")
_THOUSANDS = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9}
MAX_LINE = 8192  # characters; no log line of a trainer is longer
DECLARED = "space file"  # the name of a format that a space file declares


class Pattern(Protocol):
    """What finds a format in a line."""

    def search(self, line: str, /) -> re.Match[str] | None:
        """Return where the line matches first, ``None`` where it does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFormat:
    """How one trainer tells of its throughput.

    Args:
        name: of the trainer.
        mark: words that every line of the format holds; a line without them is not looked at any further.
        pattern: finds the numbers in a line.
        groups: reading, one of ``READINGS`` -> number of the group that says it.
        is_of_whole_run: whether its throughput is over all of the run, with warm-up, evaluation and saving.
    """

    name: str
    mark: str
    pattern: Pattern
    groups: Mapping[str, int]
    is_of_whole_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LogReading:
    """What one line says.

    Args:
        tokens_per_second: of the whole job; ``None`` where the line does not say.
        samples_per_second: likewise.
        step_s: seconds of one optimizer step, likewise.
        step: number of the step, likewise.
        at_s: when the line was printed, seconds on a clock of the process, likewise.
    """

    tokens_per_second: float | None = None
    samples_per_second: float | None = None
    step_s: float | None = None
    step: float | None = None
    at_s: float | None = None


def _format(name: str, mark: str, text: str, *, is_of_whole_run: bool = False) -> LogFormat:
    """Return the format of a pattern in which each ``<reading>`` stands for a number that says it."""
    pattern = re.compile(re.sub(r"<(\w+)>", lambda found: f"(?P<{found[1]}>{_NUMBER})", text))
    groups = pattern.groupindex
    return LogFormat(name=name, mark=mark, pattern=pattern, groups=groups, is_of_whole_run=is_of_whole_run)


def declared_format(log: LogPattern) -> LogFormat:
    """Return the format that a space file declares."""
    pattern = BoundedPattern(log.pattern)
    return LogFormat(name=DECLARED, mark="", pattern=pattern, groups=log.readings(pattern))


LOG_FORMATS = (
    # tokens / (seconds * ranks that share the work on a batch): https://github.com/pytorch/torchtitan
    _format("torchtitan", "tps:", r"step:\s*<step>\s.*\btps:\s*<tokens_per_second_per_device>"),
    # The last rank prints; the batch is that of the whole job: https://github.com/NVIDIA/Megatron-LM
    _format(
        "Megatron-LM",
        "elapsed time per iteration (ms):",
        r"\biteration\s+<step>/.*elapsed time per iteration \(ms\): <step_time_ms>"
        r"(?:.*\bglobal batch size:\s*<samples>)?",
    ),
    # Over the whole training, its warm-up with it; versions differ in the quotes: https://github.com/huggingface/transformers
    _format(
        "HF Trainer",
        "train_samples_per_second",
        r"'train_samples_per_second': '?<samples_per_second>",
        is_of_whole_run=True,
    ),
    # The batch of its timer is that of the whole job: https://github.com/deepspeedai/DeepSpeed
    _format("DeepSpeed", "CurrSamplesPerSec=", r"(?:\bglobal_step=<step>,.*)?CurrSamplesPerSec=<samples_per_second>"),
    # One iteration is one optimizer step: https://github.com/karpathy/nanoGPT
    _format("nanoGPT", "ms, mfu", r"\biter <step>: loss \S+, time <step_time_ms>ms, mfu"),
)

OF_WHOLE_RUN = frozenset(log_format.name for log_format in LOG_FORMATS if log_format.is_of_whole_run)


def read_line(line: str, log_format: LogFormat, *, devices: int) -> LogReading | None:
    """Return what a line says in one format; ``None`` where it is no line of that format.

    Args:
        line: as printed, colours with it.
        log_format: one of ``LOG_FORMATS``.
        devices: of the job.
    """
    if log_format.mark not in line:
        return None
    found = log_format.pattern.search(_COLOUR.sub("", line[:MAX_LINE]))
    if found is None:
        return None
    said = {reading: found[group] for reading, group in log_format.groups.items() if found[group] is not None}
    numbers = {reading: _number(text) for reading, text in said.items()}
    step_s = numbers.get("step_time_s") or over(numbers.get("step_time_ms"), 1000.0)
    return LogReading(
        tokens_per_second=_rate(numbers, "tokens", devices, step_s),
        samples_per_second=_rate(numbers, "samples", devices, step_s),
        step_s=step_s,
        step=numbers.get("step"),
    )


def _rate(numbers: Mapping[str, float | None], what: str, devices: int, step_s: float | None) -> float | None:
    """Return what of the whole job a line says per second: outright, of one device, or over the time of a step."""
    of_device = _times(numbers.get(f"{what}_per_second_per_device"), devices)
    return numbers.get(f"{what}_per_second") or of_device or over(numbers.get(what), step_s)


def _number(text: str) -> float | None:
    """Return a positive number as programs print it, ``41,500`` and ``41.5k`` too; ``None`` for anything else.

    >>> _number("41,500.0"), _number("41.5k"), _number("41,5"), _number("nan")
    (41500.0, 41500.0, None, None)
    """
    spelled = _SPELLED.fullmatch(text.strip())
    if spelled is None:
        return None
    whole, rest, exponent, thousands = spelled.groups(default="")
    value = float(f"{whole.replace(',', '')}{rest}{exponent}") * _THOUSANDS[thousands]
    return value if isfinite(value) and value > 0 else None


def over(amount: float | None, divisor: float | None) -> float | None:
    """Return a quotient; ``None`` where either is unknown or nothing."""
    return amount / divisor if amount and divisor else None


def _times(amount: float | None, factor: float) -> float | None:
    return amount * factor if amount is not None else None
