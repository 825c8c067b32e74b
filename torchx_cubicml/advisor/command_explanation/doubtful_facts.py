"""Facts that a command leaves open or only suggests, as alternatives that widen each forecast."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from torchx_cubicml.advisor.command_explanation.doubtful_tables import doubtful_tables
from torchx_cubicml.advisor.command_explanation.estimates import LogNormal

if TYPE_CHECKING:
    from torchx_cubicml.launch.command_facts.known_facts import CommandFacts
    from torchx_cubicml.records.values import Value

Row: TypeAlias = "Mapping[str, Value]"
Forecast: TypeAlias = Callable[[Row], "LogNormal | None"]

_ASSUMED = 0.1  # probability that a fact that the source suggests is another one
_ALTERNATIVES: Mapping[str, tuple[Value, ...]] = {
    "precision": ("fp32", "bf16"),
    "activation_checkpointing": ("none", "full"),
    "sharding_strategy": ("DDP", "FULL_SHARD"),
    "attention_kernel": ("sdpa", "math"),
    "compile": (False, True),
    "vocab_size": (1_000, 16_000, 50_000, 128_000),
    "gradient_accumulation_steps": (1, 4),
}
"""Fact -> values that it may have; of unknown facts, each is as likely, but for those below."""
_WEIGHTS: Mapping[str, tuple[float, ...]] = {"gradient_accumulation_steps": (3.0, 1.0)}  # most programs take no rounds
_INNER_WIDTHS = {8.0 / 3.0: 0.2, 2.0: 0.1}  # inner over model width -> probability, where four is counted
_FACTOR = 2.0  # by which a number that the source suggests may differ


@dataclass(frozen=True, slots=True)
class OtherValue:
    """Another value of one fact.

    Args:
        fact: its name.
        value: that it may have.
        probability: of that.
    """

    fact: str
    value: Value
    probability: float


def alternatives(known: CommandFacts) -> list[OtherValue]:
    """Return the alternatives to the facts of a command: of its unknown facts, and of those that are assumed."""
    found = []
    for fact, values in _ALTERNATIVES.items():
        if fact in known.facts and fact in known.assumed:
            others = [value for value in values if value != known.facts[fact]]
            found += [OtherValue(fact, value, _ASSUMED / len(others)) for value in others]
        elif fact in known.unknown:
            weights = _WEIGHTS.get(fact, (1.0,) * len(values))
            found += [
                OtherValue(fact, value, weight / sum(weights)) for value, weight in zip(values, weights, strict=True)
            ]
    for fact in known.assumed - _ALTERNATIVES.keys():
        value = known.facts[fact]
        if isinstance(value, int) and not isinstance(value, bool) and value > 1:
            sizes = (max(1, round(value / _FACTOR)), round(value * _FACTOR))
            found += [OtherValue(fact, each, _ASSUMED / len(sizes)) for each in sizes]
    width = known.facts.get("d_model")
    if "d_ff" in known.unknown and isinstance(width, int):
        found += [OtherValue("d_ff", max(1, round(width * ratio)), chance) for ratio, chance in _INNER_WIDTHS.items()]
    return [*found, *(OtherValue(*each) for each in doubtful_tables(known))]


def with_doubt(forecast: Forecast, row: Row, others: list[OtherValue]) -> LogNormal | None:
    """Return the forecast of a row, shifted and widened by what the alternatives, one at a time, would change.

    Alternatives of different facts count as independent; those of one fact exclude each other.
    """
    base = forecast(row)
    if base is None:
        return None
    logarithm, variance = base.logarithm, base.spread**2
    for fact in dict.fromkeys(other.fact for other in others):
        moves = []
        for other in (each for each in others if each.fact == fact):
            changed = forecast({**row, fact: other.value})
            if changed is not None:
                moves.append((other.probability, changed.logarithm - base.logarithm))
        mean = sum(probability * move for probability, move in moves)
        logarithm += mean
        variance += sum(probability * move**2 for probability, move in moves) - mean**2
    return LogNormal(logarithm, max(variance, 0.0) ** 0.5)
