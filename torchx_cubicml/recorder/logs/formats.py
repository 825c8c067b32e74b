"""Log formats of well-known trainers, and the parser that reads throughput from their lines.

The group names of a pattern (``READINGS``) give unit and scope, because trainers differ: "tokens per second" is of one
device in torchtitan and of the whole job elsewhere. A space file may declare another format.
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
MAX_LINE = 8192  # characters; log lines of trainers are shorter
DECLARED = "space file"  # the name of a format that a space file declares


class Pattern(Protocol):
    """Pattern of a log format, searched for in every line."""

    def search(self, line: str, /) -> re.Match[str] | None:
        """Return the first match in the line; ``None`` without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFormat:
    """Log format in which one trainer prints its throughput.

    Args:
        name: of the trainer.
        mark: text in every line of the format; lines without it are skipped.
        pattern: finds the numbers in a line.
        groups: reading, one of ``READINGS`` -> number of its group in the pattern.
        is_of_whole_run: whether its throughput covers the whole run, including warm-up, evaluation and saving.
    """

    name: str
    mark: str
    pattern: Pattern
    groups: Mapping[str, int]
    is_of_whole_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LogReading:
    """Readings of one log line; ``None`` for those that the line does not contain.

    Args:
        tokens_per_second: of the whole job.
        samples_per_second: of the whole job.
        step_s: seconds of one optimizer step.
        step: number of the step.
        at_s: when the line was printed, in seconds on a clock of the process; ``None`` if unknown.
    """

    tokens_per_second: float | None = None
    samples_per_second: float | None = None
    step_s: float | None = None
    step: float | None = None
    at_s: float | None = None


def _format(name: str, mark: str, text: str, *, is_of_whole_run: bool = False) -> LogFormat:
    """Compile a log format from a pattern in which each ``<reading>`` stands for a number."""
    pattern = re.compile(re.sub(r"<(\w+)>", lambda found: f"(?P<{found[1]}>{_NUMBER})", text))
    groups = pattern.groupindex
    return LogFormat(name=name, mark=mark, pattern=pattern, groups=groups, is_of_whole_run=is_of_whole_run)


def declared_format(log: LogPattern) -> LogFormat:
    """Return the format that a space file declares."""
    pattern = BoundedPattern(log.pattern)
    return LogFormat(name=DECLARED, mark="", pattern=pattern, groups=log.readings(pattern))


LOG_FORMATS = (
    # tokens / (seconds * ranks that share a batch): https://github.com/pytorch/torchtitan
    _format("torchtitan", "tps:", r"step:\s*<step>\s.*\btps:\s*<tokens_per_second_per_device>"),
    # The last rank prints; batch size of the whole job: https://github.com/NVIDIA/Megatron-LM
    _format(
        "Megatron-LM",
        "elapsed time per iteration (ms):",
        r"\biteration\s+<step>/.*elapsed time per iteration \(ms\): <step_time_ms>"
        r"(?:.*\bglobal batch size:\s*<samples>)?",
    ),
    # Over the whole training with warm-up; versions differ in the quotes: https://github.com/huggingface/transformers
    _format(
        "HF Trainer",
        "train_samples_per_second",
        r"'train_samples_per_second': '?<samples_per_second>",
        is_of_whole_run=True,
    ),
    # Its timer counts the batch of the whole job: https://github.com/deepspeedai/DeepSpeed
    _format("DeepSpeed", "CurrSamplesPerSec=", r"(?:\bglobal_step=<step>,.*)?CurrSamplesPerSec=<samples_per_second>"),
    # One iteration is one optimizer step: https://github.com/karpathy/nanoGPT
    _format("nanoGPT", "ms, mfu", r"\biter <step>: loss \S+, time <step_time_ms>ms, mfu"),
)

WHOLE_RUN_FORMATS = frozenset(log_format.name for log_format in LOG_FORMATS if log_format.is_of_whole_run)


def read_line(line: str, log_format: LogFormat, *, devices: int) -> LogReading | None:
    """Parse a log line; return ``None`` if it does not match the format.

    Args:
        line: as printed, including colour codes.
        log_format: one of ``LOG_FORMATS``.
        devices: number of devices of the job.
    """
    if log_format.mark not in line:
        return None
    found = log_format.pattern.search(_COLOUR.sub("", line[:MAX_LINE]))
    if found is None:
        return None
    texts = {reading: found[group] for reading, group in log_format.groups.items() if found[group] is not None}
    numbers = {reading: _number(text) for reading, text in texts.items()}
    step_s = numbers.get("step_time_s") or over(numbers.get("step_time_ms"), 1000.0)
    return LogReading(
        tokens_per_second=_rate(numbers, "tokens", devices, step_s),
        samples_per_second=_rate(numbers, "samples", devices, step_s),
        step_s=step_s,
        step=numbers.get("step"),
    )


def _rate(numbers: Mapping[str, float | None], unit: str, devices: int, step_s: float | None) -> float | None:
    """Return the whole job's throughput from a line's rate, its rate per device, or its batch and step time."""
    of_devices = _times(numbers.get(f"{unit}_per_second_per_device"), devices)
    return numbers.get(f"{unit}_per_second") or of_devices or over(numbers.get(unit), step_s)


def _number(text: str) -> float | None:
    """Parse a positive number as programs print it, such as ``41,500`` and ``41.5k``; ``None`` for anything else.

    >>> _number("41,500.0"), _number("41.5k"), _number("41,5"), _number("nan"), _number("0")
    (41500.0, 41500.0, None, None, None)
    """
    spelled = _SPELLED.fullmatch(text.strip())
    if spelled is None:
        return None
    whole, rest, exponent, thousands = spelled.groups(default="")
    value = float(f"{whole.replace(',', '')}{rest}{exponent}") * _THOUSANDS[thousands]
    return value if isfinite(value) and value > 0 else None


def over(amount: float | None, divisor: float | None) -> float | None:
    """Return a quotient; ``None`` if either number is unknown or zero."""
    return amount / divisor if amount and divisor else None


def _times(amount: float | None, factor: float) -> float | None:
    return amount * factor if amount is not None else None
