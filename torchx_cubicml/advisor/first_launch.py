"""Prediction of a workload's first launch: by the public prior, calibrated on launches of other workloads if any."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Self

from torchx_cubicml.launch.messages import rate_text
from torchx_cubicml.predictors.features.rows import encode_rows
from torchx_cubicml.predictors.roofline.facts import Facts
from torchx_cubicml.predictors.roofline.public_prior import public_prior

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchx_cubicml.predictors.features.history import TrainingTable
    from torchx_cubicml.predictors.roofline import Roofline
    from torchx_cubicml.records.values import Value

Interval = tuple[float, float, float]
"""Low end, median and high end of an 80 % interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstLaunch:
    """Predictions of the configs of a workload that was never launched.

    Args:
        sources: names of the public sources of the constants; empty where the constants are the hand-set ones for all.
        n_launches: launches of other workloads that the formulas are calibrated on.
        objective: unit of ``throughput``.
        throughput: name of a config -> 80 % interval of the whole job; configs that are not covered are left out.
        peak_gib: name of a config -> 80 % interval of the peak memory of one device, likewise.
        uncovered: name of a config -> facts of which the public sources do not tell enough for its throughput, where
            there are no other launches either.
        held: name of a public source -> share of its trainings in such intervals, predicted without it; empty where
            other launches count, too, or where the prior does not say it.
    """

    sources: tuple[str, ...] = ()
    n_launches: int = 0
    objective: str = "tokens_per_second"
    throughput: Mapping[str, Interval] = field(default_factory=dict)
    peak_gib: Mapping[str, Interval] = field(default_factory=dict)
    uncovered: Mapping[str, str] = field(default_factory=dict)
    held: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def by_public_prior(cls, rows: Mapping[str, Mapping[str, Value]]) -> Self:
        """Return the predictions of named rows, each of workload facts and a config, without any launch."""
        prior = public_prior()
        if prior is None or not rows:
            return cls()
        each = list(rows.values())
        speeds, peaks = prior.tokens_per_second(each).intervals(), prior.peak_gib(each).intervals()
        throughput = _known(rows, speeds)
        return cls(
            sources=prior.sources if prior.knows_devices(Facts.from_rows(each)).any() else (),
            held=prior.held if throughput else {},
            throughput=throughput,
            peak_gib=_known(rows, peaks),
            uncovered={name: text for name, row in rows.items() if (text := prior.uncovered(row))},
        )

    @classmethod
    def by_other_workloads(
        cls, rows: Mapping[str, Mapping[str, Value]], roofline: Roofline, history: TrainingTable, *, objective: str
    ) -> Self:
        """Return the predictions of named rows by formulas that are calibrated on launches of other workloads."""
        each = list(rows.values())
        predicted = roofline.predict(encode_rows(history.columns, each))
        sources: tuple[str, ...] = ()
        prior = public_prior()
        if prior is not None and roofline.prior_ is prior.constants:
            predicted = prior.after_few_launches(predicted, each, n_launches=len(history.measured))
            sources = prior.sources
        return cls(
            sources=sources,
            n_launches=len(history.measured),
            objective=objective,
            throughput=_known(rows, predicted.intervals()),
        )

    @property
    def lines(self) -> list[str]:
        """Lines for people: one per config, then how often such intervals held; empty where nothing is predicted."""
        basis = [_count(self.n_launches, "launch", "launches") + " of other workloads"] if self.n_launches else []
        basis += [_count(len(self.sources), "public source", "public sources")] if self.sources else []
        none = "no measured launch of this workload" if self.n_launches else "no measured launch of yours"
        lines = []
        for name, speed in self.throughput.items():
            text = f"{_speed_text(speed, self.objective)}{_peak_text(self.peak_gib.get(name))}"
            lines.append(f"Predicted for {name}, from formulas and {' and '.join(basis)}, {none}: {text}.")
        lines += [
            f"No prediction of {name}: you have no measured launch, and the public sources tell too little of {text}"
            f"{_peak_text(self.peak_gib.get(name))}."
            for name, text in self.uncovered.items()
        ]
        if self.held:
            least = f"{math.floor(100.0 * min(self.held.values()))} %"
            lines.append(f"Such intervals held {least} or more of each of {len(self.held)} public sources left out.")
        return lines

    def to_json(self) -> dict[str, object]:
        """Return everything as JSON values."""
        return asdict(self)


def _known(names: Mapping[str, object], intervals: Sequence[Interval | None]) -> dict[str, Interval]:
    return {name: each for name, each in zip(names, intervals, strict=True) if each is not None}


def _count(n: int, one: str, many: str) -> str:
    return f"{n} {one if n == 1 else many}"


def _speed_text(interval: Interval, objective: str) -> str:
    """Return a throughput with its interval, to the digits that it deserves.

    >>> _speed_text((25_000.4, 41_234.0, 67_000.0), "tokens_per_second")
    '41,000 tokens/s (80 % interval: 25,000 to 67,000)'
    """
    low, middle, high = map(_rounded, interval)
    return f"{rate_text(middle, objective)} (80 % interval: {_number(low)} to {_number(high)})"


def _rounded(value: float) -> float:
    return float(f"{value:.2g}")


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10.0 else f"{value:g}"


def _peak_text(interval: Interval | None) -> str:
    """Return a peak with its interval; empty where it is unknown.

    >>> _peak_text((40.0, 52.3, 71.0))
    '; a peak of 52 GiB (40 to 71)'
    >>> _peak_text((3.96, 118.2, 183.0))
    '; a peak of 120 GiB (4 to 180)'
    """
    if interval is None:
        return ""
    low, middle, high = (_number(_rounded(value)) for value in interval)
    return f"; a peak of {middle} GiB ({low} to {high})"
