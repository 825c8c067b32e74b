"""How a tune ends, over generated spaces, programs and budgets on the simulated cluster."""

from __future__ import annotations

import random
import re
import tempfile
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tune.cluster import Killed, SimulatedCluster
from tests.tune.draws import Draws, go, prepare_in, stored, suggestion_of
from torchx_cubicml.errors import LaunchError
from torchx_cubicml.predictors.features.history import config_key
from torchx_cubicml.records.trial import State, Trial
from torchx_cubicml.store import TrialStore
from torchx_cubicml.tuner import Budget, Launching, Notice, TuneResult, prepare

if TYPE_CHECKING:
    from torchx_cubicml.advisor import Suggestion
    from torchx_cubicml.records.values import Config
    from torchx_cubicml.tuner import Prepared, Step
    from torchx_cubicml.tuner.proposer import Snapshot

NAMES = {"micro_batch_size": "--batch_size", "width": "--width", "seconds": "--seconds", "steps": "--steps"}
WORDS = ("--batch_size", "1", "--width", "1", "--seconds", "1", "--steps", "1")


@dataclass(frozen=True)
class Case:
    """A space of one to four parameters, and the one that the program does not know, if any.

    It says so by name, or prints nothing but an error.
    """

    choices: tuple[int, ...]
    unknown: str
    names_it: bool
    budget: int
    repeats: int
    parallel: int
    seed: int

    def error(self, config: Config) -> str:
        if not self.unknown or config[self.unknown] == 1:
            return ""
        flag = NAMES[self.unknown]
        return f"exit status 2: error: unrecognized arguments: {flag} 3" if self.names_it else "ValueError: no"


@st.composite
def cases(draw: st.DrawFn, *, fails: bool = True, least: int = 1) -> Case:
    choices = draw(st.lists(st.integers(2, 5), min_size=1, max_size=len(NAMES)).map(tuple))
    names = list(NAMES)[: len(choices)]
    return Case(
        choices=choices,
        unknown=draw(st.sampled_from(["", *names])) if fails else "",
        names_it=draw(st.booleans()),
        budget=draw(st.integers(least, 20)),
        repeats=draw(st.integers(2 if least > 1 else 1, 4)),
        parallel=draw(st.integers(1, 3)),
        seed=draw(st.integers(0, 99)),
    )


class Untried(Draws):
    """A quick advisor: draws legal configs, and one that failed with an error once more when nothing else is left."""

    def suggest(self, snapshot: Snapshot) -> list[Suggestion]:
        states: dict[str, list[State]] = {}
        for trial in snapshot.trials:
            states.setdefault(config_key(trial.config), []).append(trial.state)
        bound = snapshot.space.bind(workload=snapshot.workload, current=snapshot.current)
        legal = list(bound.configs())
        again = [each for each in legal if states.get(config_key(each)) == [State.USER_ERROR]]
        found = [each for each in legal if config_key(each) not in states] or again
        return [suggestion_of(random.Random(snapshot.seed).choice(found))] if found else []


def prepared_for(case: Case, folder: Path) -> Prepared:
    prepared = prepare_in(folder)
    parameters = [
        f'[parameters.{name}]\nchoices = {list(range(1, count + 1))}\nflag = "{flag}"\nchanges_training = true\n'
        for (name, flag), count in zip(NAMES.items(), case.choices, strict=False)
    ]
    (folder / "space.toml").write_text('objective = "samples_per_second"\n' + "".join(parameters))
    script = prepared.request.component_args[: prepared.request.component_args.index("--") + 1]
    return prepare(
        replace(
            prepared.request,
            component_args=(*script, *WORDS),
            budget=Budget(launches=case.budget),
            repeats=case.repeats,
            parallel=case.parallel,
        )
    )


def tuned(case: Case, folder: Path, *, kills: int = 0) -> tuple[list[Step], list[Trial], Prepared, SimulatedCluster]:
    """Return the steps of a tune, which are none if it ends with an error, and its trials."""
    prepared = prepared_for(case, folder)
    cluster = SimulatedCluster(seed=case.seed, fates=("done",), run_s=(5.0, 20.0), error=case.error)
    rng = random.Random(case.seed)
    steps: list[Step] = []
    for left in range(kills, -1, -1):
        cluster.kill_in = rng.randint(20, 200) if left else 0
        with suppress(Killed):
            try:
                steps = go(prepared, cluster, Untried())
            except LaunchError as error:
                assert re.match("stopping: (two launches failed in the same way|[0-9]+ launches in a row)", str(error))  # noqa: PT017
            break
    return steps, stored(prepared), prepared, cluster


def is_measured(trial: Trial) -> bool:
    return trial.measurement is not None


@given(cases(), st.integers(0, 2))
@settings(max_examples=20)
def test_a_certain_failure_is_launched_at_most_twice(case: Case, kills: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        steps, trials, prepared, cluster = tuned(case, Path(folder), kills=kills)
    failed = [trial for trial in trials if trial.state is State.USER_ERROR]
    most = 1 if case.names_it else 2
    own = config_key(prepared.current)
    assert steps or own in {config_key(trial.config) for trial in trials if is_measured(trial)}
    assert len(failed) <= most + case.parallel - 1  # others may be in flight when the last of these ends
    assert cluster.launched_twice() == []


@given(cases())
@settings(max_examples=20)
def test_every_end_has_a_reason_and_the_status_tells_what_was_measured(case: Case) -> None:
    with tempfile.TemporaryDirectory() as folder:
        steps, trials, prepared, _ = tuned(case, Path(folder))
    measured = {config_key(trial.config) for trial in trials if is_measured(trial)}
    if not steps:
        assert measured == {config_key(prepared.current)}
        return
    result = steps[-1]
    assert isinstance(result, TuneResult)
    used, why = result.ending.split(": ", 1)
    assert used == f"{result.launches} of {case.budget} launch{'es' if case.budget > 1 else ''}"
    assert why
    assert (why == "the budget is used up") == (result.launches == case.budget)
    others = measured - {config_key(prepared.current)}
    assert (result.others_measured, result.compares) == (len(others), bool(others))
    assert not result.set_aside or case.unknown in result.set_aside


@given(cases(fails=False, least=5))
@settings(max_examples=20)
def test_a_winner_and_the_own_config_are_measured_for_a_claim(case: Case) -> None:
    with tempfile.TemporaryDirectory() as folder:
        steps, _, prepared, _ = tuned(case, Path(folder))
    result = steps[-1]
    assert isinstance(result, TuneResult)
    assert not [step for step in steps if isinstance(step, Notice)]
    assert result.comparison is not None
    if result.best is not None and config_key(result.best.config) != config_key(prepared.current):
        assert result.comparison.launches_lacking == 0, [
            (step.purpose, dict(step.suggestion.config)) for step in steps if isinstance(step, Launching)
        ]


@given(cases(fails=False))
@settings(max_examples=15)
def test_a_budget_too_small_for_a_claim_is_said_to_be_before_the_first_launch(case: Case) -> None:
    case = replace(case, budget=case.budget % 6 + 1)
    with tempfile.TemporaryDirectory() as folder:
        steps, _, prepared, _ = tuned(case, Path(folder))
    texts = [step.text if isinstance(step, Notice) else "" for step in steps[:2]]
    told = "the budget of" if case.budget < 5 else "with --repeats 1" if case.repeats == 1 else ""
    assert texts[1].startswith(told)
    assert bool(texts[1]) == bool(told)
    result = steps[-1]
    assert isinstance(result, TuneResult)
    assert not (told and result.comparison is not None and result.comparison.claims_gain)
    if result.best is not None and result.best.config != prepared.current:
        assert result.launches_lacking > 0 or not told


def test_a_crowded_launch_from_before_the_tune_tells_beforehand_what_it_can_show(prepared: Prepared) -> None:
    done = Trial.completed(workload=prepared.workload, config=prepared.current, samples_per_second=100.0)
    busy = {"host_cpus": 2, "other_busy_cpus": 1.7, "idle_cpus": 0.0}
    TrialStore(prepared.store_url).add(replace(done, observed=busy, started_at="2026-01-01T00:00:00+00:00"))
    prepared = replace(prepared, request=replace(prepared.request, budget=Budget(launches=8), repeats=3))
    steps = go(prepared, SimulatedCluster(seed=1, fates=("done",)), Untried())
    first = next(number for number, step in enumerate(steps) if isinstance(step, Launching))
    before = [step.text for step in steps[:first] if isinstance(step, Notice)]
    assert [text for text in before if "crowded" in text] == [
        "the latest launch was crowded: other processes kept 1.7 of 2 processors busy; 2 launches of each config, as "
        "crowded as this one, are likely to confirm gains above 1.66x only"
    ]


def test_a_short_budget_of_hours_searches_instead_of_repeating(tmp_path: Path) -> None:
    case = Case(choices=(5, 5), unknown="", names_it=False, budget=9, repeats=3, parallel=1, seed=1)
    prepared = prepared_for(case, tmp_path)
    prepared = replace(prepared, request=replace(prepared.request, budget=Budget(hours=0.1)))
    cluster = SimulatedCluster(seed=1, fates=("done",), run_s=(100.0, 100.0))
    steps = go(prepared, cluster, Untried())
    (notice,) = [step.text for step in steps if isinstance(step, Notice)]
    assert re.match("the budget of 0.1 hours fits [234] launches and is too small to claim a gain", notice)
    purposes = [step.purpose for step in steps if isinstance(step, Launching)]
    assert purposes[:2] == ["baseline", "search"]
    result = steps[-1]
    assert isinstance(result, TuneResult)
    assert re.fullmatch(r"\d launches, 0\.\d\d of 0\.1 hours: .+", result.ending)
