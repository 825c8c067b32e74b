"""What the log lines of well-known trainers say of throughput: a table of formats, and a measurement from their lines.

One row per format. Unit and scope stand with each, for they differ: "tokens per second" is of one device in torchtitan
and of the whole job elsewhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite
from statistics import fmean, median
from typing import TYPE_CHECKING

from torchx_cubicml.recorder.steps import count_warmup, quantile
from torchx_cubicml.trial import Measurement

if TYPE_CHECKING:
    from collections.abc import Sequence

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_NUMBER = r"[\d,]*\d(?:\.\d+)?(?:[eE][-+]?\d+)?"
MAX_LINE = 8192  # characters; no log line of a trainer is longer


class Scope(StrEnum):
    """Whose throughput a number is."""

    JOB = "job"
    DEVICE = "device"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFormat:
    """How one trainer tells of its throughput.

    Args:
        name: of the trainer.
        mark: words that every line of the format holds; a line without them is not looked at any further.
        pattern: with a group ``tokens_per_second``, ``samples_per_second``, ``step_ms`` or ``step_s``; where it has one
            of the latter two, a group ``samples`` may hold the samples of a step of the whole job.
        scope: of a rate.
    """

    name: str
    mark: str
    pattern: re.Pattern[str]
    scope: Scope = Scope.JOB


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one line says.

    Args:
        tokens_per_second: of the whole job; ``None`` where the line does not say.
        samples_per_second: likewise.
        step_s: seconds of one optimizer step, likewise.
    """

    tokens_per_second: float | None = None
    samples_per_second: float | None = None
    step_s: float | None = None


def _pattern(text: str) -> re.Pattern[str]:
    """Return a pattern in which each ``<name>`` stands for a number in the group ``name``."""
    return re.compile(re.sub(r"<(\w+)>", lambda found: f"(?P<{found[1]}>{_NUMBER})", text))


LOG_FORMATS = (
    # tokens / (seconds * ranks that share the work on a batch): https://github.com/pytorch/torchtitan
    LogFormat(
        name="torchtitan",
        mark="tps:",
        pattern=_pattern(r"step:\s*\d+\s.*\btps:\s*<tokens_per_second>"),
        scope=Scope.DEVICE,
    ),
    # The last rank prints; the batch is that of the whole job: https://github.com/NVIDIA/Megatron-LM
    LogFormat(
        name="Megatron-LM",
        mark="elapsed time per iteration (ms):",
        pattern=_pattern(
            r"\biteration\s+\d+/.*elapsed time per iteration \(ms\): <step_ms>(?:.*\bglobal batch size:\s*<samples>)?"
        ),
    ),
    # Over the whole training, its warm-up with it; versions differ in the quotes: https://github.com/huggingface/transformers
    LogFormat(
        name="HF Trainer",
        mark="train_samples_per_second",
        pattern=_pattern(r"'train_samples_per_second': '?<samples_per_second>"),
    ),
    # The batch of its timer is that of the whole job: https://github.com/deepspeedai/DeepSpeed
    LogFormat(
        name="DeepSpeed",
        mark="CurrSamplesPerSec=",
        pattern=_pattern(r"CurrSamplesPerSec=<samples_per_second>"),
    ),
    # One iteration is one optimizer step: https://github.com/karpathy/nanoGPT
    LogFormat(
        name="nanoGPT",
        mark="ms, mfu",
        pattern=_pattern(r"\biter \d+: loss \S+, time <step_ms>ms, mfu"),
    ),
)


def read_line(line: str, log_format: LogFormat, *, devices: int) -> Reading | None:
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
    numbers = {name: _number(text) for name, text in found.groupdict().items() if text is not None}
    scale = devices if log_format.scope is Scope.DEVICE else 1
    step_s = numbers.get("step_s") or _over(numbers.get("step_ms"), 1000.0)
    return Reading(
        tokens_per_second=_times(numbers.get("tokens_per_second"), scale),
        samples_per_second=_times(numbers.get("samples_per_second"), scale) or _over(numbers.get("samples"), step_s),
        step_s=step_s,
    )


def measure_readings(
    readings: Sequence[Reading], *, source: str, samples: int | None = None, tokens: int | None = None
) -> Measurement | None:
    """Return the measurement that the lines of one format make; ``None`` without a usable one.

    Args:
        readings: in the order of their lines.
        source: name of the format.
        samples: of one step of the whole job, where it is known otherwise.
        tokens: likewise.
    """
    usable = [reading for reading in readings if _seconds(reading) is not None]
    if not usable:
        return None
    seconds = [second for second in map(_seconds, usable) if second is not None]
    warmup = min(count_warmup(seconds), len(usable) - 1)
    steady = usable[warmup:]
    steps = sorted(reading.step_s for reading in steady if reading.step_s is not None)
    whole = len(steps) == len(steady)
    return Measurement(
        tokens_per_second=_median([reading.tokens_per_second for reading in steady])
        or (_over(tokens, median(steps)) if whole else None),
        samples_per_second=_median([reading.samples_per_second for reading in steady])
        or (_over(samples, median(steps)) if whole else None),
        steps_counted=len(steady),
        warmup_steps=warmup,
        step_time_s=(quantile(steps, 0.1), quantile(steps, 0.5), quantile(steps, 0.9)) if whole else (),
        mean_step_time_s=fmean(steps) if whole else None,
        source=source,
    )


def _seconds(reading: Reading) -> float | None:
    """Return a time that grows as the reading gets slower."""
    return reading.step_s or _over(1.0, reading.tokens_per_second or reading.samples_per_second)


def _median(rates: Sequence[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return median(known) if len(known) == len(rates) else None


def _number(text: str) -> float | None:
    value = float(text.replace(",", ""))
    return value if isfinite(value) and value > 0 else None


def _over(amount: float | None, divisor: float | None) -> float | None:
    return amount / divisor if amount and divisor else None


def _times(amount: float | None, factor: float) -> float | None:
    return amount * factor if amount is not None else None
