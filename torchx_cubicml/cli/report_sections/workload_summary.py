"""Summary of a workload in a few numbers, cheap enough for hundreds of workloads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchx_cubicml.records.redaction import mask, printable
from torchx_cubicml.records.trial import State
from torchx_cubicml.records.value_text import config_text

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from torchx_cubicml.advisor.comparison import Comparison
    from torchx_cubicml.cli.report_sections.view import WorkloadView
    from torchx_cubicml.records.values import Config, Workload

_FINE = (State.COMPLETED, State.STOPPED_EARLY)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSummary:
    """Numbers of one workload.

    Args:
        workload: its facts.
        objective: name of the throughput.
        launches: trials.
        measured: trials with a throughput.
        failures: trials that ended otherwise than complete.
        best: config that is shown as the best; ``None`` where none was measured.
        throughput: of the trial of highest throughput of the config of highest median, in the unit of the objective.
        best_so_far: places of the launches that set a new best, 0 to 1 in their order, and the throughput of each as a
            share of the best.
        comparison: of the best with the user's own; ``None`` without one.
        world_size: of the trial of the best config; ``None`` where it is not known.
    """

    workload: Workload
    objective: str
    launches: int
    measured: int
    failures: int
    best: Config | None
    throughput: float | None
    best_so_far: Sequence[tuple[float, float]]
    comparison: Comparison | None
    world_size: int | None

    @property
    def name(self) -> str:
        """Program of the workload."""
        return _shown(str(self.workload.get("program") or "a program without a name"))

    def facts_text(self, *, first: Collection[str] = ()) -> str:
        """Return the other facts on one line, those named in ``first`` before the others."""
        facts = {name: value for name, value in self.workload.items() if name not in {"program", "project"}}
        ordered = sorted(facts, key=lambda name: name not in first)
        return _shown(config_text({name: facts[name] for name in ordered}))

    @property
    def gain(self) -> float | None:
        """Throughput of the best over the user's own; ``None`` where nothing is compared."""
        return self.comparison.gain if self.comparison is not None else None

    @property
    def is_claimed(self) -> bool:
        """True if the gain is claimed."""
        return self.comparison is not None and self.comparison.claims_gain


def summary_of_workload(view: WorkloadView) -> WorkloadSummary:
    """Return the summary of one workload."""
    trials, objective, best = view.trials, view.objective, view.fastest
    ordered = sorted(trials, key=lambda trial: (trial.started_at, trial.trial_id))
    rates = [trial.throughput(objective) for trial in ordered]
    world_size = best.fact("world_size") if best is not None else None
    return WorkloadSummary(
        workload=trials[0].workload,
        objective=objective,
        launches=len(trials),
        measured=sum(rate is not None for rate in rates),
        failures=sum(trial.state.ended and trial.state not in _FINE for trial in trials),
        best=view.best,
        throughput=best.throughput(objective) if best is not None else None,
        best_so_far=_best_so_far(rates),
        comparison=view.comparison,
        world_size=world_size if type(world_size) is int else None,
    )


def _best_so_far(rates: Sequence[float | None]) -> list[tuple[float, float]]:
    top = max((rate for rate in rates if rate is not None), default=0.0)
    steps: list[tuple[float, float]] = []
    best = 0.0
    for place, rate in enumerate(rates):
        if rate is not None and rate > best:
            best = rate
            steps.append((place / len(rates), best / top))
    return steps


def _shown(text: str) -> str:
    return printable(mask(text))
