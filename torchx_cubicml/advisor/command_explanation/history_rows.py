"""Launches of a store as rows that a command's facts can be compared with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import compress
from typing import TYPE_CHECKING, Self

from torchx_cubicml.predictors.features.device_specs import find_hardware
from torchx_cubicml.predictors.features.history import training_row
from torchx_cubicml.predictors.roofline import Roofline
from torchx_cubicml.records.provenance import Trust
from torchx_cubicml.records.workload import PROJECT, is_same_project, recency

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Value

_MOST = 100  # launches that a forecast is calibrated on: more change the constants little, and a user waits


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRows:
    """Measured launches that the formulas cover, on the device of a command.

    Args:
        trials: the latest ones, those of the same program first.
        rows: their facts.
        groups: of alike levels: their projects, or their programs if the command is of one of these projects.
        n_own: how many of them are of the same program.
    """

    trials: tuple[Trial, ...] = ()
    rows: tuple[Mapping[str, Value], ...] = ()
    groups: tuple[str, ...] = ()
    n_own: int = 0

    @classmethod
    def of(cls, trials: Iterable[Trial], row: Mapping[str, Value], *, project: Value | None = None) -> Self:
        """Return the launches that tell of a command.

        Args:
            trials: recorded launches.
            row: facts of the command, ``program`` among them.
            project: identities of its project; ``None`` where they are not known.
        """
        formulas = Roofline()
        measured = sorted(
            (trial for trial in trials if trial.measurement is not None and trial.trust is Trust.OWN),
            key=recency,
            reverse=True,
        )
        near = [trial for trial in measured if _is_same_device(training_row(trial), row)]
        near.sort(key=lambda trial: trial.workload.get("program") != row.get("program"))
        usable = [trial for trial in near if formulas.explain(training_row(trial))][:_MOST]
        own = [trial for trial in usable if trial.workload.get("program") == row.get("program")]
        return cls(
            trials=tuple(usable),
            rows=tuple(map(training_row, usable)),
            groups=tuple(_groups(usable, project)),
            n_own=len(own),
        )

    def only(self, chosen: Sequence[bool]) -> Self:
        """Return the chosen ones of these launches; those of the same program are the first."""
        return replace(
            self,
            trials=tuple(compress(self.trials, chosen)),
            rows=tuple(compress(self.rows, chosen)),
            groups=tuple(compress(self.groups, chosen)),
            n_own=sum(chosen[: self.n_own]),
        )

    @property
    def text(self) -> str:
        """Launches, as people count them; empty for none."""
        n_others = len(self.trials) - self.n_own
        own = f"{_count(self.n_own)} of this program" if self.n_own else ""
        others = f"{_count(n_others)} of other programs of yours" if n_others else ""
        return " and ".join(filter(None, (own, others)))


def _groups(trials: Sequence[Trial], project: Value | None) -> list[str]:
    """Return the group of each launch. Programs of one project are alike: they tell little of other projects."""
    projects = [trial.workload.get(PROJECT) for trial in trials]
    is_near = project is None or any(each is None or is_same_project(each, project) for each in projects)
    programs = [f"{trial.workload.get('program')} {each}" for trial, each in zip(trials, projects, strict=True)]
    return programs if is_near else [str(each) for each in projects]


def _count(n: int) -> str:
    return f"{n} {'launch' if n == 1 else 'launches'}"


def _is_same_device(row: Mapping[str, Value], asked: Mapping[str, Value]) -> bool:
    here, there = (str(each.get("device", "")) for each in (asked, row))
    hardware = find_hardware(here)
    if hardware is not None:
        found = find_hardware(there)
        return found is not None and found.name == hardware.name
    return not here or here == there
