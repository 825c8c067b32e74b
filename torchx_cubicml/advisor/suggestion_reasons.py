"""Explanation of suggestions: predicted gain, interval, and the trials behind them."""

from __future__ import annotations

from heapq import nsmallest
from typing import TYPE_CHECKING

from torchx_cubicml.advisor.claims import claims_of
from torchx_cubicml.launch.messages import per_cost_text
from torchx_cubicml.records.job_time import STEPS_S, parts_text, seconds_text
from torchx_cubicml.records.objective_units import OBJECTIVES
from torchx_cubicml.records.suggestion import NearTrial, Suggestion
from torchx_cubicml.searchers.base import identity

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torchx_cubicml.advisor.posterior import Posterior
    from torchx_cubicml.predictors.measurement_error import Gain
    from torchx_cubicml.records.values import Config, Value
    from torchx_cubicml.space import SearchSpace


def against_baseline(gain: float, low: float, high: float) -> str:
    """Return the text of a gain over the user's own config with its 80 % interval.

    >>> against_baseline(1.4, 1.25, 1.57)
    '1.40x your config (1.25x to 1.57x)'
    >>> against_baseline(1.01, 0.98, 1.04)
    '1.01x your config (0.98x to 1.04x, so it may be slower)'
    """
    note = ", so it may be slower" if low < 1.0 < high else ""
    return f"{gain:.2f}x your config ({low:.2f}x to {high:.2f}x{note})"


def differences(config: Config, other: Config, space: SearchSpace | None = None) -> str:
    """Return the text of the values in which ``other`` differs from ``config``; ``space`` names what they belong to.

    >>> differences({"micro_batch_size": 8, "compile": True}, {"micro_batch_size": 4, "compile": True})
    'micro_batch_size 4 instead of 8'
    """
    entries = {} if space is None else {each.parameter: each.entries for each in space.dimensions}
    return ", ".join(
        _change(name, config[name], other[name], entries.get(name, "layers")) for name in _different(config, other)
    )


def distance(config: Config, other: Config) -> float:
    """Return the number of parameters in which two configs differ; a per-layer value counts its share of layers."""
    return sum(_share_different(config[name], other[name]) for name in _different(config, other))


def without_effect(names: Iterable[str]) -> str:
    """Return the text that names parameters left alone for lack of an observed effect; empty where there are none."""
    text = ", ".join(names)
    return f'{text} kept as typed: no effect observed or measured (observe = "" tunes it anyway)' if text else ""


def _different(config: Config, other: Config) -> list[str]:
    return [name for name, value in config.items() if name in other and other[name] != value]


def _share_different(value: Value, other: Value) -> float:
    """Return the share of entries that differ; a value that is no tuple counts as one entry."""
    if isinstance(value, tuple) and isinstance(other, tuple) and len(value) == len(other):
        return sum(a != b for a, b in zip(value, other, strict=True)) / len(value)
    return 1.0


def _change(name: str, value: Value, other: Value, entries: str) -> str:
    if isinstance(value, tuple) and isinstance(other, tuple) and len(value) == len(other):
        return f"{name} differs in {sum(a != b for a, b in zip(value, other, strict=True))} of {len(value)} {entries}"
    return f"{name} {other} instead of {value}"


def build_suggestions(
    posterior: Posterior,
    chosen: Sequence[tuple[Config, str]],
    current: Config,
    *,
    n_nearest: int = 0,
    claims: Sequence[Gain | None] = (),
) -> list[Suggestion]:
    """Return a suggestion with prediction, gain and reason for each chosen config.

    Args:
        posterior: of the workload.
        chosen: configs, each with its reason or an empty one.
        current: the user's own config.
        n_nearest: number of nearest measured trials listed with each suggestion. The nearest is described in the reason
            where none is given.
        claims: gain of each chosen config, where it is known; see ``claims_of``.
    """
    if not chosen:
        return []
    configs = [config for config, _ in chosen]
    estimates = posterior.estimates([*configs, current])
    *predicted, baseline = estimates.intervals()
    *fits, _ = estimates.fits.tolist()
    gains = [_interval(each) for each in claims or claims_of(posterior, configs, current)]
    own_doubt, own = _lowest_uncertainty(posterior, current), posterior.outcomes.get(identity(current))
    suggestions = []
    for (config, why), interval, gain, fit in zip(chosen, predicted, gains, fits, strict=True):
        low, throughput, high = interval or (None, None, None)
        gain_low, gain_median, gain_high = gain or (None, None, None)
        nearest = _nearest(posterior, config, n_nearest)
        parts = time_to_done(posterior, config, throughput)
        suggestion = Suggestion(
            config=config,
            throughput=throughput,
            low=low,
            high=high,
            probability_to_fit=fit,
            reason=_reason(posterior, gain, nearest, why, parts),
            n_trials=posterior.n_trials,
            baseline_throughput=baseline[1] if baseline and gain else None,
            gain=gain_median,
            gain_low=gain_low,
            gain_high=gain_high,
            doubt=max(_lowest_uncertainty(posterior, config), own_doubt),
            n_baseline=len(own.measured) if own is not None else 0,
            objective=None if posterior.space.objective in OBJECTIVES else posterior.space.objective,
            time_to_done=parts,
            nearest=nearest,
        )
        suggestions.append(suggestion)
    return suggestions


def time_to_done(posterior: Posterior, config: Config, pace: float | None) -> dict[str, float] | None:
    """Return the predicted seconds of each part until a job is done, from the jobs per second; ``None`` if unknown.

    Sums to one over ``pace``.
    """
    if posterior.timing is None or pace is None:
        return None
    parts = posterior.timing.overhead.parts(config)
    return {**parts, STEPS_S: max(0.0, 1.0 / pace - sum(parts.values()))}


def _interval(claim: Gain | None) -> tuple[float, float, float] | None:
    return None if claim is None else (claim.quantile(0.1), claim.quantile(0.5), claim.quantile(0.9))


def _lowest_uncertainty(posterior: Posterior, config: Config) -> float:
    record = posterior.outcomes.get(identity(config))
    return min(record.uncertainties, default=0.0) if record else 0.0


def _nearest(posterior: Posterior, config: Config, count: int) -> tuple[NearTrial, ...]:
    """Return the measured trials of the configs nearest to ``config``, without its own.

    Of equally near configs the fastest come first; of the trials of one config the lower median stands for all.
    """
    others = (
        (distance(config, record.config), -max(record.measured), record)
        for record in posterior.outcomes.values()
        if record.measured and identity(record.config) != identity(config)
    )
    return tuple(
        NearTrial(
            trial_id=record.trial_ids[(len(record.measured) - 1) // 2],
            differs=differences(config, record.config, posterior.space),
            throughput=record.measured[(len(record.measured) - 1) // 2],
            uncertainty=record.uncertainties[(len(record.measured) - 1) // 2],
        )
        for _, _, record in nsmallest(count, others, key=lambda other: other[:2])
    )


def _reason(
    posterior: Posterior,
    gain: tuple[float, float, float] | None,
    nearest: Sequence[NearTrial],
    why: str,
    parts: Mapping[str, float] | None,
) -> str:
    texts = [why]
    if gain is not None:
        low, median, high = gain
        of_cost = per_cost_text(posterior.space.objective)
        texts.append(f"expected {against_baseline(median, low, high)} {of_cost}".rstrip() if low < high else "")
    if parts and posterior.space.job is not None:
        parts_of_time = parts_text(parts, posterior.space.job)
        parts_words = f"done in {seconds_text(sum(parts.values()))}: {parts_of_time}"
        texts.append(parts_words)
    if not why:
        near = [f"most similar trial: {each.differs}" for each in nearest[:1]]
        texts += near or ["explores untried values"]
    texts += [without_effect(posterior.ineffective), *posterior.advice]
    return "; ".join(filter(None, texts))
