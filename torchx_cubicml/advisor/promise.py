"""What is promised of configs, and why they are proposed: a ``Suggestion`` for each."""

from __future__ import annotations

from dataclasses import replace
from heapq import nsmallest
from typing import TYPE_CHECKING

from torchx_cubicml.advisor.reasons import against_baseline, differences, distance, without_effect
from torchx_cubicml.records.suggestion import NearTrial, Suggestion
from torchx_cubicml.searchers.base import identity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.advisor.noise import Belief
    from torchx_cubicml.advisor.outlook import Outlook
    from torchx_cubicml.records.trial import Config


def promised(
    outlook: Outlook, chosen: Sequence[tuple[Config, str]], current: Config, *, n_nearest: int = 0
) -> list[Suggestion]:
    """Return what is expected of each config, ``chosen`` being configs with a reason, or with an empty one.

    Args:
        outlook: what is known.
        chosen: configs, each with the reason.
        current: the user's own config.
        n_nearest: how many of the measured trials nearest to each are told, the nearest of them in words, too, where
            there is no reason.
    """
    if not chosen:
        return []
    configs = [config for config, _ in chosen]
    *beliefs, baseline = outlook.beliefs([*configs, current])
    gains = outlook.gains(configs, current)
    fits = outlook.forecast(configs).fits.tolist()
    plain = [
        _suggestion(config, belief, baseline if gain else None, gain, fits=chance, n_trials=outlook.n_trials)
        for config, belief, gain, chance in zip(configs, beliefs, gains, fits, strict=True)
    ]
    told = [
        replace(
            item,
            nearest=_nearest(outlook, item.config, n_nearest),
            doubt=max(_doubt(outlook, item.config), _doubt(outlook, current)),
        )
        for item in plain
    ]
    return [replace(item, reason=_reason(outlook, item, why)) for item, (_, why) in zip(told, chosen, strict=True)]


def _doubt(outlook: Outlook, config: Config) -> float:
    record = outlook.records.get(identity(config))
    return min(record.uncertainties, default=0.0) if record else 0.0


def _nearest(outlook: Outlook, config: Config, count: int) -> tuple[NearTrial, ...]:
    """Return the measured trials of the configs most like ``config``, itself apart; of several alike, the fastest."""
    others = (
        (distance(config, record.config), -max(record.measured), record)
        for record in outlook.records.values()
        if record.measured and identity(record.config) != identity(config)
    )
    return tuple(
        NearTrial(
            trial_id=record.trial_ids[(len(record.measured) - 1) // 2],
            differs=differences(config, record.config),
            throughput=record.measured[(len(record.measured) - 1) // 2],
            uncertainty=record.uncertainties[(len(record.measured) - 1) // 2],
        )
        for _, _, record in nsmallest(count, others, key=lambda other: other[:2])
    )


def _suggestion(
    config: Config, belief: Belief | None, baseline: Belief | None, gain: Belief | None, *, fits: float, n_trials: int
) -> Suggestion:
    return Suggestion(
        config=config,
        throughput=belief.throughput if belief else None,
        low=belief.quantile(0.1) if belief else None,
        high=belief.quantile(0.9) if belief else None,
        probability_to_fit=fits,
        reason="",
        n_trials=n_trials,
        baseline_throughput=baseline.throughput if baseline else None,
        gain=gain.throughput if gain else None,
        gain_low=gain.quantile(0.1) if gain else None,
        gain_high=gain.quantile(0.9) if gain else None,
    )


def _reason(outlook: Outlook, suggestion: Suggestion, why: str) -> str:
    parts = [why]
    if suggestion.gain is not None and suggestion.gain_low is not None and suggestion.gain_high is not None:
        told = against_baseline(suggestion.gain, suggestion.gain_low, suggestion.gain_high)
        parts.append(f"expected {told}" if suggestion.gain_low < suggestion.gain_high else "")
    if not why:
        near = [f"nearest run: {each.differs}" for each in suggestion.nearest[:1]]
        parts += near or ["chosen to cover what was not tried yet"]
    parts += [without_effect(outlook.ineffective), *outlook.advice]
    return "; ".join(part for part in parts if part)
