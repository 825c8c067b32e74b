"""History: the trials of a store as one command sees them, made by passes, each of which may add a note."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from torchx_cubicml.history.present_command import PresentCommand
from torchx_cubicml.records.workload import is_same_program, is_same_workload
from torchx_cubicml.space.fixed import with_fixed_values
from torchx_cubicml.space.spelling import same_value

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Config, Value, Workload
    from torchx_cubicml.space import SearchSpace


@dataclass(frozen=True, kw_only=True)
class History:
    """Trials of a store, and the command for which they are compared.

    Args:
        space: search space, bound or not, with the objective.
        workload: facts of the launch.
        current: config of the command as typed.
        trials: of all workloads, in the order of the store.
        command: command as typed, which tells whether its work is that of earlier launches.
        keys: of the digests in the store.
        predictor: name of the predictor chosen for the store; empty for the default.
        held: names of the parameters that stay as typed by the rules of the caller.
        notes: messages to the user on the trials.
        unseen: reason why the command is another job than the earlier ones until it has run; empty where it is not.
        kept: global batch size that the script keeps, see ``kept_batch``.
    """

    space: SearchSpace
    workload: Workload
    current: Config
    trials: Sequence[Trial] = ()
    command: PresentCommand = field(default_factory=PresentCommand)
    keys: tuple[str, ...] = ()
    predictor: str = ""
    held: Collection[str] = ()
    notes: tuple[str, ...] = ()
    unseen: str = ""
    kept: Workload = field(default_factory=dict)
    _own: dict[tuple[int, int], tuple[object, list[Trial]]] = field(default_factory=dict, compare=False, repr=False)

    @property
    def own(self) -> list[Trial]:
        """Trials of the workload; found once for all histories that share the trials."""
        key = id(self.trials), id(self.workload)
        if key not in self._own:  # keeps both alive, so that their ids stay unique
            found = [trial for trial in self.trials if is_same_workload(trial, self.workload)]
            self._own[key] = (self.trials, self.workload), found
        return self._own[key][1]

    @cached_property
    def others(self) -> list[Trial]:
        """Trials of other workloads."""
        own = set(map(id, self.own))
        return [trial for trial in self.trials if id(trial) not in own]

    @property
    def frozen_space(self) -> SearchSpace:
        """Space in which the parameters that stay as typed have their current values."""
        return with_fixed_values(self.space, self.current, self.held)

    @property
    def is_measured(self) -> bool:
        """True if a launch of the program was measured; before that, no predictor needs to be loaded."""
        return any(trial.measurement is not None and is_same_program(trial, self.workload) for trial in self.trials)

    def where(self, keeps: Callable[[Trial], bool]) -> History:
        """Return the history of the trials for which a function is true."""
        found = [*filter(keeps, self.trials)]
        return self if len(found) == len(self.trials) else replace(self, trials=found)

    def noting(self, *notes: str, trials: Sequence[Trial] | None = None) -> History:
        """Return the history with further notes, of which empty ones do not count, and with other trials if given."""
        return replace(
            self, notes=(*self.notes, *filter(None, notes)), trials=self.trials if trials is None else trials
        )

    def holding(self, names: Iterable[str]) -> History:
        """Return the history in the space in which parameters have their values in the command.

        Trials of the workload with another value of a parameter that the space then lacks are left out.
        """
        space = with_fixed_values(self.space, self.current, {*names})
        fixed = self.current.keys() - {parameter.name for parameter in space.parameters}
        return replace(self.as_typed(fixed), space=space)

    def as_typed(self, names: Iterable[str]) -> History:
        """Leave out the trials of the workload with another value of a parameter than the command has."""
        typed = [(name, self.current[name]) for name in names]
        other = {id(each) for each in self.own if not all(_has(each, *pair) for pair in typed)}
        return self.where(lambda trial: id(trial) not in other)


def _has(trial: Trial, name: str, value: Value) -> bool:
    return name in trial.config and same_value(trial.config[name], value)
