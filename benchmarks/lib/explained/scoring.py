"""Comparison of an explanation made before a launch with what the launch was seen to do."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Value

COMPARED = (
    *("n_layers", "d_model", "d_ff", "n_heads", "n_kv_heads", "vocab_size", "seq_len", "micro_batch_size"),
    *("gradient_accumulation_steps", "precision", "activation_checkpointing", "embedding_rows", "embedding_dims"),
    *("embedding_pooling", "layer_n_params"),
)
"""Facts that the recorder observes and that a command may tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """An 80 % interval beside what was measured.

    Args:
        low: its end.
        high: its other end.
        measured: by the launch.
    """

    low: float
    high: float
    measured: float

    @property
    def holds(self) -> bool:
        """Return whether the interval holds the measured number."""
        return self.low <= self.measured <= self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One explanation and its launch.

    Args:
        kind: of the command.
        parameters: ``exact``, ``in range``, ``wrong`` or ``not told``.
        said_wrong: facts that the command was taken to tell for certain, and that were otherwise.
        assumed_wrong: facts that were marked as assumed, and that were otherwise.
        named: facts that were observed, not told before, and named as unknown.
        unnamed: likewise, but not named.
        step: seconds of a step; ``None`` without a forecast, and so below.
        is_refused: whether a forecast of the step is not told, as it is too wide.
        peak: GiB of a process.
    """

    kind: str
    parameters: str
    said_wrong: tuple[str, ...] = ()
    assumed_wrong: tuple[str, ...] = ()
    named: tuple[str, ...] = ()
    unnamed: tuple[str, ...] = ()
    step: Interval | None = None
    is_refused: bool = False
    peak: Interval | None = None


def score(kind: str, told: Mapping[str, Any], trial: Trial) -> Score:
    """Return the comparison of an explanation, as ``explain --json`` prints it, with the launch that followed it."""
    known = {name: _plain(entry["value"]) for name, entry in told["known"].items()}
    assumed = {name for name, entry in told["known"].items() if entry["assumed"]}
    seen = {name: trial.observed[name] for name in COMPARED if name in trial.observed}
    relevant = {name: value for name, value in seen.items() if not _is_of_other_kind(name, known)}
    wrong = [name for name, value in relevant.items() if name in known and not _equal(known[name], value)]
    absent = [name for name in relevant if name not in known and not _is_implied(name, relevant, known)]
    measurement = trial.measurement
    return Score(
        kind=kind,
        parameters=_parameters(told["parameters"], trial.observed.get("n_params")),
        said_wrong=tuple(name for name in wrong if name not in assumed),
        assumed_wrong=tuple(name for name in wrong if name in assumed),
        named=tuple(name for name in absent if name in told["unknown"]),
        unnamed=tuple(name for name in absent if name not in told["unknown"]),
        step=_interval(told["step_s"], measurement.mean_step_time_s if measurement else None),
        is_refused=bool(told["why_no_step"]),
        peak=_interval(told["peak_gib"], measurement.peak_gib if measurement else None),
    )


def table(scores: Sequence[Score]) -> list[str]:
    """Return the lines of a table: one row per kind, and one for all."""
    kinds = list(dict.fromkeys(each.kind for each in scores))
    rows = {**{kind: [each for each in scores if each.kind == kind] for kind in sorted(kinds)}, "all": list(scores)}
    lines = [
        f"{'':30s}{'n':>5s}{'exact':>8s}{'range':>8s}{'wrong':>8s}{'untold':>8s}"
        f"   {'peak held':20s}{'step held':20s}{'refused':>8s}"
    ]
    for name, chosen in rows.items():
        counts = [
            sum(each.parameters == word for each in chosen) for word in ("exact", "in range", "wrong", "not told")
        ]
        cells = "".join(f"{count:8d}" for count in counts)
        n_refused = sum(each.is_refused for each in chosen)
        peaks = _held([each.peak for each in chosen])
        lines.append(
            f"{name:30s}{len(chosen):5d}{cells}   {peaks:20s}{_held([each.step for each in chosen]):20s}{n_refused:8d}"
        )
    return lines


def facts_lines(scores: Sequence[Score]) -> list[str]:
    """Return lines on the facts that were not told, or told otherwise than they were seen."""
    kinds = {
        "told as certain, and otherwise": [name for each in scores for name in each.said_wrong],
        "told as assumed, and otherwise": [name for each in scores for name in each.assumed_wrong],
        "not told, and named as unknown": [name for each in scores for name in each.named],
        "not told, and not named": [name for each in scores for name in each.unnamed],
    }
    return [f"{text}: {_counts(names)}" for text, names in kinds.items()]


def _counts(names: Sequence[str]) -> str:
    return ", ".join(f"{name} ({names.count(name)})" for name in dict.fromkeys(names)) or "none"


def _held(intervals: Sequence[Interval | None]) -> str:
    """Return the share of intervals that hold, their number, and the median ratio of their ends."""
    known = [each for each in intervals if each is not None]
    if not known:
        return "-"
    width = float(np.exp(np.median([math.log(each.high / each.low) for each in known])))
    return f"{np.mean([each.holds for each in known]):4.0%} of {len(known)}, x{width:.3g}"


def _parameters(told: Mapping[str, float] | None, seen: Value | None) -> str:
    if told is None or not isinstance(seen, int):
        return "not told"
    if told["low"] == told["high"]:
        return "exact" if told["low"] == seen else "wrong"
    return "in range" if told["low"] <= seen <= told["high"] else "wrong"


def _interval(told: Mapping[str, float] | None, measured: float | None) -> Interval | None:
    return None if told is None or not measured else Interval(low=told["low"], high=told["high"], measured=measured)


def _plain(value: Any) -> Value:
    return tuple(value) if isinstance(value, list) else value


def _is_of_other_kind(name: str, known: Mapping[str, Value]) -> bool:
    """Return whether no formula of recommenders reads a fact; the recorder takes their tables for repeated blocks."""
    others = {"n_layers", "activation_checkpointing", "gradient_accumulation_steps", "precision"}
    return "embedding_rows" in known and name in others


def _is_implied(name: str, seen: Mapping[str, Value], known: Mapping[str, Value]) -> bool:
    """Return whether a fact that is not told has its default or follows from others.

    There are as many heads of keys as of queries, and the batch of a step tells how often it is accumulated.
    """
    is_same = name == "n_kv_heads" and seen[name] == seen.get("n_heads")
    return is_same or (name == "gradient_accumulation_steps" and "global_batch_size" in known)


def _equal(told: Value, seen: Value) -> bool:
    """Return whether two values are the same; one value for all layers is that of each."""
    one, other = (each if isinstance(each, tuple) else (each,) for each in (told, seen))
    return one == other if len(one) == len(other) else len({*one, *other}) == 1
