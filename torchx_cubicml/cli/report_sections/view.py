"""One workload as the sections of the report see it: its trials, its result, and what is learned from them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from torchx_cubicml.advisor import ParameterSensitivity, Study
    from torchx_cubicml.advisor.comparison import Comparison
    from torchx_cubicml.predictors.tune_rounds import TuneRounds
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Config
    from torchx_cubicml.report.markup import Html
    from torchx_cubicml.report.renderer import Specification
    from torchx_cubicml.report.sections.figures import Colours
    from torchx_cubicml.space import SearchSpace
    from torchx_cubicml.tuner.results import RecordedResult, TuneNotes
    from torchx_cubicml.tuner.unconfirmed import Unconfirmed

_MOST_STUDIED = 1000  # trials of one workload that its study is fitted to: the latest
_MOST_OTHERS = 300  # trials of other workloads, likewise


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredConfig:
    """Config with its measurements.

    Args:
        config: as it was launched.
        median: throughput of its launches, in the unit of the objective.
        launches: number of those measured, >= 1.
    """

    config: Config
    median: float
    launches: int


@dataclass(frozen=True, kw_only=True)
class WorkloadView:
    """One workload of the report; what several sections need is computed once, when it is first asked for.

    Args:
        trials: of the workload, at the statistic and the prices of the space file.
        objective: name of the throughput.
        space: of the space file; ``None`` without one.
        notes: of the tunes of the store.
        store: its URL.
        recorded: all trials of the store.
        colours: of the page's figures; ``None`` without the renderer: figures are then left out.
        place: of the workload on the page, from 1.
        predictor: name of the chosen predictor.
        chosen: id of the trial whose config is compared first; empty for the best of the others.
    """

    trials: Sequence[Trial]
    objective: str
    space: SearchSpace | None
    notes: TuneNotes
    store: str
    recorded: Sequence[Trial]
    colours: Colours | None
    place: int
    predictor: str
    chosen: str = ""

    @cached_property
    def result(self) -> RecordedResult | None:
        """Result of the latest finished tune of the workload; ``None`` without one."""
        found = [result for result in self.notes.results if any(map(result.made, self.trials))]
        return found[-1] if found else None

    @cached_property
    def elsewhere(self) -> list[Trial]:
        """Trials of other workloads."""
        return [trial for trial in self.recorded if trial.workload != self.trials[0].workload]

    @cached_property
    def comparison(self) -> Comparison | None:
        """Comparison of the user's own config with the best: the one that a tune confirmed, else the fastest seen."""
        from torchx_cubicml.advisor.comparison import recorded_comparison

        if self.unconfirmed is not None:
            return self.unconfirmed.comparison
        if (found := self.result.comparison if self.result is not None else None) and found.claims_gain:
            return found
        own = {each.launch_id for each in self.trials if found is not None and each.config == found.baseline.config}
        return recorded_comparison(
            self.trials, objective=self.objective, baselines=self.notes.baselines | own, elsewhere=self.elsewhere
        )

    @cached_property
    def unconfirmed(self) -> Unconfirmed | None:
        """Fastest measured config where the latest tune claims no gain; ``None`` if none was measured faster."""
        from torchx_cubicml.errors import CubicMLError
        from torchx_cubicml.tuner.unconfirmed import unconfirmed_of

        if self.result is None or self.result.comparison is None or self.result.comparison.claims_gain:
            return None
        own, objective = self.result.comparison.baseline.config, self.result.comparison.objective
        made = [trial for trial in self.trials if self.result.made(trial)]
        earlier = [trial for trial in self.trials if not self.result.made(trial)]
        try:
            return unconfirmed_of(own, made, objective=objective, earlier=earlier, elsewhere=self.elsewhere)
        except CubicMLError:  # the journal names an objective that there is none of
            return None

    @cached_property
    def best(self) -> Config | None:
        """Best config: the one that a tune confirmed, else the fastest seen; ``None`` where none was measured."""
        if self.comparison is not None:
            return self.comparison.best.config
        return self.fastest.config if self.fastest is not None else None

    @cached_property
    def fastest(self) -> Trial | None:
        """Trial of the config of highest median throughput; ``None`` where none was measured."""
        from torchx_cubicml.advisor.comparison import fastest_measured

        return fastest_measured(self.trials, objective=self.objective)

    @cached_property
    def own(self) -> Config | None:
        """The user's own config; ``None`` where it is not known or was not measured."""
        return self.comparison.baseline.config if self.comparison is not None else None

    @cached_property
    def ranked(self) -> list[MeasuredConfig]:
        """Measured configs: the best one, then the others by their median throughput, the highest first."""
        rates: dict[Hashable, list[float]] = {}
        configs: dict[Hashable, Config] = {}
        for trial in self.trials:
            rate = trial.throughput(self.objective)
            if rate is not None and trial.config:
                key = tuple(sorted(trial.config.items()))
                configs.setdefault(key, trial.config)
                rates.setdefault(key, []).append(rate)
        found = [
            MeasuredConfig(config=configs[key], median=median(each), launches=len(each)) for key, each in rates.items()
        ]
        return sorted(found, key=lambda each: (each.config != self.best, -each.median))

    @cached_property
    def rounds(self) -> TuneRounds:
        """Rounds of the latest tune in rounds."""
        from torchx_cubicml.predictors.round_table import tunes_in_rounds
        from torchx_cubicml.predictors.tune_rounds import rounds_of

        tunes = tunes_in_rounds(self.trials)
        return rounds_of(self.trials, tunes, max(1, len(tunes)), objective=self.objective)

    @cached_property
    def study(self) -> Study | None:
        """Study in the space of the file, else in that of the recorded values; ``None`` where none can be fitted.

        Its own config is the user's, or the best one where that is not known.
        """
        current = self.own or self.best
        return self.study_of(current) if current is not None else None

    @cached_property
    def why_outside_space(self) -> str:
        """Reason why the best config has no place in the space of the file; empty where it has one."""
        from torchx_cubicml.advisor.posterior import with_pinned_choices
        from torchx_cubicml.errors import CubicMLError

        if self.space is None or self.best is None:
            return ""
        if self.study is not None:
            space = self.study.posterior.space
            return space.why_illegal(with_pinned_choices(self.study.posterior, self.best)) or ""
        try:
            self._fitted(self.own or self.best)
        except CubicMLError as error:
            return str(error)
        return ""

    def study_of(self, current: Config) -> Study | None:
        """Return the study whose own config is ``current``; ``None`` where none can be fitted."""
        from torchx_cubicml.errors import CubicMLError

        try:
            return self._fitted(current)
        except CubicMLError:
            return None

    def _fitted(self, current: Config) -> Study | None:
        """Return the study whose own config is ``current``; ``None`` where no parameter has two values.

        Raises:
            CubicMLError: the space does not fit the launches.
        """
        from torchx_cubicml.advisor import Study
        from torchx_cubicml.space.observed_space import observed_space

        space = self.space if self.space is not None else observed_space(self.trials, objective=self.objective)
        if space is None:
            return None
        latest = sorted(self.trials, key=lambda trial: trial.started_at)[-_MOST_STUDIED:]
        workload = latest[-1].workload
        others = [trial for trial in self.recorded if trial.workload != workload][-_MOST_OTHERS:]
        return Study.of(
            replace(space, objective=self.objective),
            workload=workload,
            current=current,
            trials=[*latest, *others],
            predictor=self.predictor,
        )

    @cached_property
    def sensitivities(self) -> tuple[ParameterSensitivity, ...]:
        """Sensitivity of the best config to each parameter; empty where it is not known."""
        from torchx_cubicml.advisor import sensitivity

        return sensitivity(self.study, winner=self.best) if self.study is not None and self.best is not None else ()

    def entries_of(self, name: str) -> str:
        """Return the word for the owners of a value's entries: ``layers`` or ``tables``."""
        return next((each.entries for each in self.sensitivities if each.name == name), "layers")


def drawn_figures(figures: Sequence[Specification | None], *, view: WorkloadView, name: str) -> Html:
    """Return figures as markup, those that are ``None`` left out; empty without the renderer.

    Args:
        figures: Vega-Lite specifications.
        view: of the workload.
        name: of the section; letters and hyphens.
    """
    from torchx_cubicml.report.markup import Html
    from torchx_cubicml.report.sections.figures import figures_html

    found = [figure for figure in figures if figure is not None]
    if view.colours is None or not found:
        return Html("")
    return figures_html(found, colours=view.colours, name=f"{name}-{view.place}")
