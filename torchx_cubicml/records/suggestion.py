"""What is proposed for a launch: a config, what is expected of it, and why."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchx_cubicml.records.trial import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class NearTrial:
    """A measured trial of a config much like one that is proposed.

    Args:
        trial_id: of the trial; of several of one config the one in the middle.
        differs: what it had in place of what is proposed, in words.
        throughput: measured, whole job, in the unit of the objective.
        uncertainty: of its logarithm, as the run told it; 0.0 where unknown.
    """

    trial_id: str
    differs: str
    throughput: float
    uncertainty: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """A config, what is expected of it, and why it is proposed.

    Args:
        config: complete, made of the literals of the space (or of the user's own command).
        throughput: median expected, whole job, in the unit of the objective; ``None`` where nothing is known yet.
        low: lower end of the 80 % interval of the true value.
        high: upper end.
        probability_to_fit: in memory, 0..1.
        reason: in words.
        n_trials: ended trials of this workload behind it.
        baseline_throughput: median expected of the user's own config.
        gain: median of the ratio of the two; ``None`` where either is unknown.
        gain_low: lower end of its 80 % interval.
        gain_high: upper end.
        doubt: standard deviation of the logarithm of throughput that runs told of themselves: of this config or of the
            user's own, by the surest run of each, whichever is larger; 0.0 where unknown.
        nearest: up to three trials of this workload by which it can be judged, the most alike first; none but of what
            ``suggest`` proposes.
    """

    config: Config
    throughput: float | None
    low: float | None
    high: float | None
    probability_to_fit: float
    reason: str
    n_trials: int
    baseline_throughput: float | None = None
    gain: float | None = None
    gain_low: float | None = None
    gain_high: float | None = None
    doubt: float = 0.0
    nearest: tuple[NearTrial, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Return JSON values."""
        config = {name: list(value) if isinstance(value, tuple) else value for name, value in self.config.items()}
        return {**asdict(self), "config": config, "nearest": [asdict(each) for each in self.nearest]}

    def promise(self) -> dict[str, object]:
        """Return JSON values of what is kept with a launch: what was promised, and why."""
        return {name: value for name, value in self.to_json().items() if name not in {"config", "nearest"}}
