from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from tests.spaces import BATCH_SIZES, N_LAYERS
from tests.tune.plans import next_launch, winner_of
from torchx_cubicml.advisor import ProposalMethod, Study, Suggestion, best_known, suggest
from torchx_cubicml.errors import CubicMLError, LaunchError, SpaceError
from torchx_cubicml.predictors.features.history import config_key
from torchx_cubicml.records.trial import Origin, State, Trial, new_id
from torchx_cubicml.tuner import Budget, Prepared, TuneRequest, prepare
from torchx_cubicml.tuner.lease import digest
from torchx_cubicml.tuner.proposer import FinalReport, Snapshot, StudyProposer

if TYPE_CHECKING:
    from pathlib import Path

    from torchx_cubicml.history.history import History
    from torchx_cubicml.records.values import Config

SPACE = N_LAYERS + BATCH_SIZES
SCRIPT_ARGS = ("--n_layer", "2", "--batch_size", "1", "--accumulate", "8")


@pytest.fixture
def request_(tmp_path: Path) -> TuneRequest:
    space = tmp_path / "space.toml"
    space.write_text(SPACE)
    return TuneRequest(
        component="dist.ddp",
        component_args=("-j", "1x2", "--script", "train.py", "--", *SCRIPT_ARGS),
        space=str(space),
        store=str(tmp_path / "store"),
        scheduler="local_cwd",
        budget=Budget(launches=12),
        repeats=2,
    )


@pytest.fixture
def prepared(request_: TuneRequest) -> Prepared:
    return prepare(request_)


def measured(prepared: Prepared, config: Config, tokens_per_second: float) -> Trial:
    """Throughput grows with the micro batch, which 8 does not survive."""
    done = Trial.completed(workload=prepared.workload, config=config, tokens_per_second=tokens_per_second)
    return replace(done, origin=Origin.TUNE)


def simulate(prepared: Prepared, launches: int, *, killed: str = "") -> list[tuple[str, Trial]]:
    """``killed`` is the purpose whose first launch is, so that nothing tells how it ended."""
    ended: list[tuple[str, Trial]] = []
    for number in range(launches):
        trials = [trial for _, trial in ended]
        planned = next_launch(prepared, trials, launches_left=launches - number)
        if planned is None:
            break
        purpose, suggestion = planned
        size = suggestion.config["micro_batch_size"]
        if size == 8:
            trial = Trial.infeasible(workload=prepared.workload, config=suggestion.config)
        else:
            trial = measured(prepared, suggestion.config, 1000.0 * int(size) + len(trials))
        if purpose == killed and killed not in [before for before, _ in ended]:
            trial = replace(trial, state=State.UNKNOWN, measurement=None, reason="the process was killed by SIGKILL")
        ended.append((purpose, trial))
    return ended


def test_the_command_is_read(prepared: Prepared) -> None:
    assert prepared.current == {"micro_batch_size": 1, "gradient_accumulation_steps": 8}
    assert prepared.workload["n_layers"] == 2
    assert prepared.workload["world_size"] == 2


def test_the_users_config_comes_first_and_confirmations_last(prepared: Prepared) -> None:
    simulated = simulate(prepared, 9)
    purposes = [purpose for purpose, _ in simulated]
    assert purposes[0] == "baseline"
    assert simulated[0][1].config == prepared.current
    assert purposes.index("confirm") > purposes.index("search")
    counts: dict[str, int] = {}
    for _, trial in simulated:
        counts[config_key(trial.config)] = counts.get(config_key(trial.config), 0) + 1
    best = {"micro_batch_size": 4, "gradient_accumulation_steps": 2}
    assert counts[config_key(prepared.current)] == prepared.request.repeats
    assert counts[config_key(best)] == 1 + prepared.request.repeats  # the one that chose it does not count


def test_a_searched_out_space_ends_the_tune_under_budget(prepared: Prepared) -> None:
    simulated = simulate(prepared, 50)
    assert len(simulated) == 4 + 1 + 2  # each config once, then the own once more and the best twice
    assert sum(trial.state is State.OUT_OF_MEMORY for _, trial in simulated) == 1


def test_earlier_measurements_are_not_launched_again(prepared: Prepared) -> None:
    known = [
        measured(prepared, {"micro_batch_size": m, "gradient_accumulation_steps": 8 // m}, 100.0 * m) for m in (1, 2)
    ]
    planned = next_launch(prepared, known, launches_left=10)
    assert planned is not None
    assert planned[1].config["micro_batch_size"] in {4, 8}


def test_launches_under_way_are_not_proposed_again(prepared: Prepared) -> None:
    own = measured(prepared, prepared.current, 100.0)
    pending = [
        replace(
            own,
            trial_id=new_id("t"),
            state=State.PLANNED,
            measurement=None,
            config={"micro_batch_size": m, "gradient_accumulation_steps": 8 // m},
        )
        for m in (2, 4)
    ]
    planned = next_launch(prepared, [own, *pending], launches_left=10)
    assert planned is not None
    assert planned[1].config["micro_batch_size"] == 8


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"parallel": 0}, LaunchError, "--parallel must be >= 1, got 0"),
        ({"target_gain": 0.9}, LaunchError, "ratio above 1"),
        ({"step_limit": -3}, LaunchError, "--steps must be >= 5, got -3"),
        ({"trial_timeout_s": -1.0}, LaunchError, "positive number of seconds"),
        ({"space": "missing.toml"}, SpaceError, "missing.toml"),
        ({"component": "dist.nothing"}, LaunchError, "dist.nothing"),
        ({"store": "nosuch://x"}, CubicMLError, "nosuch"),
        ({"component_args": ("-j", "1x2", "--script", "train.py", "--", "--lr", "1")}, LaunchError, "--n_layer"),
    ],
    ids=[
        "none-in-flight",
        "no-gain",
        "no-steps",
        "no-time",
        "no-space-file",
        "no-component",
        "unknown-protocol",
        "flag-not-in-command",
    ],
)
def test_a_bad_request_is_refused(
    request_: TuneRequest, changes: dict[str, object], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        prepare(replace(request_, **changes))


def test_earlier_launches_count_beside_those_of_this_tune(prepared: Prepared) -> None:
    best = {"micro_batch_size": 4, "gradient_accumulation_steps": 2}
    before = [measured(prepared, prepared.current, 100.0), *(measured(prepared, best, 400.0) for _ in range(5))]
    known = frozenset(trial.trial_id for trial in before)
    assert winner_of(prepared, before, known=known)[1] is None
    now = [measured(prepared, config, 200.0) for config in (prepared.current, best) for _ in range(2)]
    found, comparison = winner_of(prepared, [*before, *now], known=known)
    assert found is not None
    assert comparison is not None
    assert sorted(comparison.best.throughputs) == [200.0, 200.0, *[400.0] * 5]
    assert comparison.gain_high > 1.5 * comparison.gain_low  # what was measured contradicts itself


def test_the_measurement_that_chose_the_winner_does_not_count(prepared: Prepared) -> None:
    best = {"micro_batch_size": 4, "gradient_accumulation_steps": 2}
    lucky = replace(measured(prepared, best, 360.0), started_at="2026-01-01T00:00:00+00:00")
    later = [replace(measured(prepared, best, 300.0), started_at="2026-01-02T00:00:00+00:00") for _ in range(2)]
    own = [measured(prepared, prepared.current, 200.0) for _ in range(2)]
    other = measured(prepared, {"micro_batch_size": 2, "gradient_accumulation_steps": 4}, 150.0)
    _, comparison = winner_of(prepared, [*later, *own, other, lucky], known=frozenset())
    assert comparison is not None
    assert comparison.best.throughputs == (300.0, 300.0)


def test_a_failing_user_config_takes_no_confirmation(prepared: Prepared) -> None:
    best = {"micro_batch_size": 4, "gradient_accumulation_steps": 2}
    failed = [
        replace(measured(prepared, prepared.current, 1.0), state=State.OUT_OF_MEMORY, measurement=None)
        for _ in range(3)
    ]
    planned = next_launch(prepared, [*failed, measured(prepared, best, 300.0)], launches_left=2)
    assert planned is not None
    assert planned[0] == "confirm"
    assert planned[1].config == best


@pytest.mark.parametrize("killed", ["baseline", "confirm"])
@pytest.mark.parametrize("repeats", [1, 2])
def test_a_launch_that_was_killed_is_made_up_for(prepared: Prepared, killed: str, repeats: int) -> None:
    asked = replace(prepared, request=replace(prepared.request, repeats=repeats))
    simulated = simulate(asked, 12, killed=killed)
    assert len(simulated) == 4 + repeats - 1 + repeats + 1
    _, comparison = winner_of(asked, [trial for _, trial in simulated], known=frozenset())
    assert comparison is not None
    assert len(comparison.baseline.throughputs) == len(comparison.best.throughputs) == repeats


def test_a_config_that_is_killed_each_time_is_given_up(prepared: Prepared) -> None:
    own = measured(prepared, prepared.current, 100.0)
    best = {"micro_batch_size": 4, "gradient_accumulation_steps": 2}
    killed = [replace(measured(prepared, best, 1.0), state=State.UNKNOWN, measurement=None) for _ in range(3)]
    planned = next_launch(prepared, [own, measured(prepared, best, 300.0), *killed], launches_left=1)
    assert planned is not None
    assert planned[1].config == prepared.current


def test_a_confirmation_under_way_counts_once(prepared: Prepared) -> None:
    best = {"micro_batch_size": 4, "gradient_accumulation_steps": 2}
    own = measured(prepared, prepared.current, 100.0)
    running = replace(measured(prepared, prepared.current, 101.0), state=State.RUNNING, ended_at="")
    trials = [own, measured(prepared, best, 300.0), measured(prepared, best, 300.0), running]
    planned = [
        next_launch(prepared, [*trials[:-1], each], launches_left=1)
        for each in (running, replace(running, measurement=None))
    ]
    assert planned[0] is not None
    assert planned[1] is not None
    assert planned[0][0] == planned[1][0] == "confirm"


def test_an_interrupted_own_config_is_launched_again(prepared: Prepared) -> None:
    own = measured(prepared, prepared.current, 100.0)
    stopped = replace(own, state=State.STOPPED_EARLY, measurement=None, reason="interrupted by the user")
    planned = next_launch(prepared, [stopped], launches_left=10)
    assert planned is not None
    assert planned[0] == "baseline"


def test_a_config_lost_each_time_is_given_up(prepared: Prepared) -> None:
    own, config = measured(prepared, prepared.current, 100.0), {"micro_batch_size": 4, "gradient_accumulation_steps": 2}
    broken = [
        replace(measured(prepared, config, 1.0), state=State.INFRASTRUCTURE, measurement=None, reason="NCCL")
        for _ in range(2)
    ]
    others = [
        measured(prepared, {"micro_batch_size": 2, "gradient_accumulation_steps": 4}, 60.0),
        Trial.infeasible(workload=prepared.workload, config={"micro_batch_size": 8, "gradient_accumulation_steps": 1}),
    ]
    tuned = next_launch(prepared, [own, *others, *broken], launches_left=9)
    assert tuned is not None
    assert tuned[1].config == prepared.current
    known = frozenset(trial.trial_id for trial in (own, *others, *broken))
    another_day = next_launch(prepared, [own, *others, *broken], launches_left=9, known=known)
    assert another_day is not None
    assert (another_day[0], another_day[1].config) == ("search", config)


RIVAL = {"micro_batch_size": 2, "gradient_accumulation_steps": 4}


def contest(prepared: Prepared, rival: float, *more: Trial) -> list[Trial]:
    """The own config, a rival and the winner, each measured once; nothing else is legal and fits."""
    fast = {"micro_batch_size": 4, "gradient_accumulation_steps": 2}
    lost = Trial.infeasible(
        workload=prepared.workload, config={"micro_batch_size": 8, "gradient_accumulation_steps": 1}
    )
    speeds = [(prepared.current, 100.0), (RIVAL, rival), (fast, 300.0)]
    return [*(measured(prepared, *each) for each in speeds), lost, *more]


@pytest.mark.parametrize("launches_left", [4, 9], ids=["just enough left", "much left"])
def test_a_rival_is_measured_again_before_the_winner_is(prepared: Prepared, launches_left: int) -> None:
    purpose, planned = next_launch(prepared, contest(prepared, 299.0), launches_left=launches_left)
    assert (purpose, planned.config) == ("confirm", RIVAL)
    assert "measured again" in planned.reason
    assert isinstance(planned, Suggestion)


@pytest.mark.parametrize(
    ("rival", "launches_left", "repeats"),
    [(299.0, 3, 2), (150.0, 9, 2), (299.0, 9, 1)],
    ids=["the repeats take all launches", "it is much slower", "a small budget"],
)
def test_a_rival_takes_no_launch_that_is_needed(
    prepared: Prepared, rival: float, launches_left: int, repeats: int
) -> None:
    asked = replace(prepared, request=replace(prepared.request, repeats=repeats))
    trials = contest(prepared, rival)
    again = []
    for _ in range(launches_left):
        planned = next_launch(asked, trials, launches_left=launches_left - len(again))
        if planned is None:
            break
        again.append(planned[1].config)
        trials = [
            *trials,
            measured(prepared, planned[1].config, 100.0 if planned[1].config == asked.current else 300.0),
        ]
    assert RIVAL not in again
    assert len(again) == 2 * repeats - 1


def test_a_rival_is_measured_again_once(prepared: Prepared) -> None:
    running = replace(measured(prepared, RIVAL, 1.0), state=State.RUNNING, measurement=None)
    for again in (running, measured(prepared, RIVAL, 290.0)):
        _, planned = next_launch(prepared, contest(prepared, 299.0, again), launches_left=9)
        assert planned.config != RIVAL


@pytest.mark.parametrize(("launches", "made"), [(3, 1), (8, 2), (16, 3), (40, 3)])
def test_a_small_budget_is_not_spent_on_repeats(request_: TuneRequest, launches: int, made: int) -> None:
    assert replace(request_, budget=Budget(launches=launches), repeats=3).repeats_made == made


def test_questions_on_the_same_trials_share_what_was_learned(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    studies: list[object] = []
    learn = Study.fitted

    def counted(*args: object, **options: object) -> Study:
        studies.append(learn(*args, **options))
        return studies[-1]

    monkeypatch.setattr(Study, "fitted", counted)
    trials = [trial for _, trial in simulate(prepared, 3)]
    studies.clear()
    advisor = StudyProposer(predictor="")
    facts = {"workload": prepared.workload, "current": prepared.current, "seed": 5}
    snapshot = Snapshot(space=prepared.space, trials=trials, **facts)
    best = advisor.best_known(snapshot)
    (proposed,) = advisor.suggest(snapshot)
    advisor.expected_gain(snapshot)
    account = advisor.account(snapshot, best.config)
    assert account.sensitivities
    assert len(studies) == 1
    assert best == best_known(prepared.space, trials=trials, **facts)
    assert proposed == suggest(prepared.space, trials=trials, **facts)[0]
    studies.clear()
    advisor.suggest(replace(snapshot, trials=list(trials)))  # other trials may have come
    assert len(studies) == 1


def test_the_users_config_is_repeated_while_no_winner_is_known(prepared: Prepared) -> None:
    own, fast = measured(prepared, prepared.current, 100.0), {"micro_batch_size": 4, "gradient_accumulation_steps": 2}
    under_way = replace(
        own,
        trial_id=new_id("t"),
        state=State.RUNNING,
        measurement=None,
        config={"micro_batch_size": 2, "gradient_accumulation_steps": 4},
    )
    trials = [own, measured(prepared, fast, 200.0), under_way]
    planned = next_launch(prepared, trials, launches_left=3)
    assert planned is not None
    assert planned[0] == "confirm"
    assert planned[1].config == prepared.current
    again = replace(own, trial_id=new_id("t"), state=State.RUNNING, measurement=None)
    assert next_launch(prepared, [*trials, again], launches_left=2) is None
    known = [replace(under_way, state=State.OUT_OF_MEMORY), *trials[:2], again]
    planned = next_launch(prepared, known, launches_left=2)
    assert planned is not None
    assert planned[1].config == fast


@pytest.mark.parametrize(
    "change", [{"method": ProposalMethod(acquisition="mean")}, {"step_limit": 50}, {"scheduler": "slurm"}]
)
def test_another_measurement_or_choice_is_another_tune(request_: TuneRequest, change: dict[str, object]) -> None:
    same = replace(request_, budget=Budget(launches=99), parallel=7)
    assert digest(same, space_text="") == digest(request_, space_text="")
    assert digest(replace(request_, **change), space_text="") != digest(request_, space_text="")


def sized(batch: int) -> Config:
    return {"micro_batch_size": batch, "gradient_accumulation_steps": 8 // batch}


def hoped(config: Config, *, gain: float | None = None) -> Suggestion:
    return Suggestion(
        config=config, throughput=None, low=None, high=None, probability_to_fit=1.0, reason="", n_trials=0, gain=gain
    )


@dataclass(frozen=True, kw_only=True)
class Answers:
    """An advisor whose answers are given."""

    best: Suggestion | None = None
    found: tuple[Suggestion, ...] = ()
    rival: tuple[Suggestion, ...] = ()
    expected: float | None = None

    def suggest(self, snapshot: Snapshot) -> list[Suggestion]:
        del snapshot
        return list(self.found)

    def best_known(self, snapshot: Snapshot) -> Suggestion | None:
        del snapshot
        return self.best

    def expected_gain(self, snapshot: Snapshot) -> float | None:
        del snapshot
        return self.expected

    def rivals(self, snapshot: Snapshot, winner: Config) -> list[Suggestion]:
        del snapshot, winner
        return list(self.rival)

    def account(self, snapshot: Snapshot, winner: Config) -> FinalReport:
        raise AssertionError("nothing is over")


def plan(
    prepared: Prepared, advisor: Answers, trials: list[Trial], *, left: int, **changes: object
) -> tuple[str, Config] | None:
    asked = replace(prepared, request=replace(prepared.request, **{"budget": Budget(launches=99), **changes}))
    planned = next_launch(asked, trials, launches_left=left, advisor=advisor)
    return None if planned is None else (planned[0], planned[1].config)


class TestPlan:
    def trials(self, prepared: Prepared, *sizes: int) -> list[Trial]:
        """So many measurements of each size: a hundred tokens per second for one of them, and growing with it."""
        return [
            replace(measured(prepared, sized(size), 100.0 * size + number), started_at=f"2026-01-01T00:00:{number:02}Z")
            for number, size in enumerate(sizes)
        ]

    def test_a_reached_target_is_confirmed(self, prepared: Prepared) -> None:
        advisor = Answers(best=hoped(sized(4), gain=4.0), found=(hoped(sized(2)),))
        reached = {"target_gain": 2.0, "repeats": 2}
        assert plan(prepared, advisor, self.trials(prepared, 1, 4), left=50, **reached) == ("confirm", sized(4))
        assert plan(prepared, advisor, self.trials(prepared, 1, 4, 4), left=50, **reached) == ("confirm", sized(1))
        assert plan(prepared, advisor, self.trials(prepared, 1, 4, 4, 1), left=50, **reached) == ("confirm", sized(4))
        assert plan(prepared, advisor, self.trials(prepared, 1, 4, 4, 1, 4), left=50, **reached) is None

    @pytest.mark.parametrize(("gain", "target"), [(1.9, 2.0), (None, 2.0), (4.0, None)])
    def test_below_the_target_the_search_goes_on(
        self, prepared: Prepared, gain: float | None, target: float | None
    ) -> None:
        advisor = Answers(best=hoped(sized(4), gain=gain), found=(hoped(sized(2)),))
        planned = plan(prepared, advisor, self.trials(prepared, 1, 4, 4, 1, 4), left=9, target_gain=target, repeats=2)
        assert planned == ("search", sized(2))

    @pytest.mark.parametrize(
        ("left", "purpose", "size"), [(8, "search", 8), (7, "confirm", 2), (6, "confirm", 2), (5, "confirm", 4)]
    )
    def test_the_last_launches_repeat_rivals_winner_and_own(
        self, prepared: Prepared, left: int, purpose: str, size: int
    ) -> None:
        """Three of each: two of the own config and three of the winner are missing."""
        others = (hoped(sized(2)), hoped(sized(8)))
        advisor = Answers(best=hoped(sized(4), gain=4.0), found=(hoped(sized(8)),), rival=others)
        found = plan(prepared, advisor, self.trials(prepared, 1, 2, 4, 8), left=left, repeats=3)
        assert found == (purpose, sized(size))

    @pytest.mark.parametrize(
        ("sizes", "left", "planned"),
        [
            ((1, 1, 4, 4, 2), 1, ("confirm", sized(4))),
            ((1, 1, 4, 2), 2, ("confirm", sized(2))),
            ((1, 2, 4), 3, ("confirm", sized(2))),
            ((1, 1, 2, 4), 1, ("confirm", sized(1))),
            ((1, 1, 2, 4), 6, ("search", sized(8))),
        ],
        ids=[
            "one repeat lacks",
            "two lack",
            "the own one lacks a repeat, too",
            "none can be confirmed",
            "more are left",
        ],
    )
    def test_the_last_launches_repeat_a_rival_of_an_own_config_that_may_be_beaten(
        self, prepared: Prepared, sizes: tuple[int, ...], left: int, planned: tuple[str, Config]
    ) -> None:
        own, rivals = hoped(prepared.current), (hoped(sized(2)), hoped(sized(4)))
        advisor = Answers(best=own, found=(hoped(sized(8)),), rival=rivals)
        assert plan(prepared, advisor, self.trials(prepared, *sizes), left=left, repeats=3) == planned

    def test_where_little_is_promised_what_is_known_is_confirmed(self, prepared: Prepared) -> None:
        for expected, planned in (
            (0.009, ("confirm", sized(4))),
            (0.01, ("search", sized(2))),
            (None, ("search", sized(2))),
        ):
            advisor = Answers(best=hoped(sized(4), gain=4.0), found=(hoped(sized(2)),), expected=expected)
            trials = self.trials(prepared, 1, 4)
            assert plan(prepared, advisor, trials, left=9, stop_under=0.01, repeats=2) == planned

    def test_a_launch_that_the_machines_broke_off_is_made_again_once(self, prepared: Prepared) -> None:
        advisor = Answers(found=(hoped(sized(2)),))
        own, lost = self.trials(prepared, 1, 4)
        lost = replace(lost, state=State.INFRASTRUCTURE, measurement=None, reason="NCCL")
        assert plan(prepared, advisor, [own, lost], left=9) == ("again", sized(4))
        assert plan(prepared, advisor, [own, lost, replace(lost, trial_id="2")], left=9) == ("search", sized(2))
        kept = replace(lost, measurement=own.measurement)
        assert plan(prepared, advisor, [own, kept], left=9) == ("search", sized(2))
        early = replace(lost, trial_id="3", state=State.STOPPED_EARLY)
        assert plan(prepared, advisor, [own, lost, early], left=9) == ("again", sized(4))
        of_own = replace(own, state=State.INFRASTRUCTURE, measurement=None)
        other = replace(self.trials(prepared, 4)[0], trial_id="4")
        assert plan(prepared, advisor, [replace(own, trial_id="5"), of_own, other], left=9) == ("search", sized(2))

    def test_the_winner_was_measured_again(self, prepared: Prepared) -> None:
        best = Answers(best=hoped(sized(4), gain=4.0))
        trials = self.trials(prepared, 1, 2, 8, 1, 2, 4, 8)
        found, comparison = winner_of(prepared, trials, known=frozenset(), advisor=best)
        assert found is not None
        assert comparison is not None
        assert (found.config, found.throughput) == (sized(8), 806.0)
        assert comparison.best.throughputs == (806.0,)
        assert comparison.baseline.throughputs == (100.0, 103.0)
        claimed, comparison = winner_of(
            prepared, self.trials(prepared, 1, 2, 8, 1, 2, 2, 4, 8), known=frozenset(), advisor=best
        )
        assert claimed is not None
        assert comparison is not None
        assert claimed.config == sized(2)  # the one of which a gain can be claimed
        assert comparison.best.throughputs == (204.0, 205.0)
        own, nothing = winner_of(
            prepared, self.trials(prepared, 1, 2), known=frozenset(), advisor=Answers(best=hoped(sized(1)))
        )
        assert own is not None
        assert own.config == sized(1)
        assert nothing is not None
        assert winner_of(prepared, trials, known=frozenset(), advisor=Answers()) == (None, None)

    def test_a_winner_that_was_measured_again_stays_it(self, prepared: Prepared) -> None:
        trials = self.trials(prepared, 1, 4, 4, 8, 8)
        best = hoped(sized(4), gain=4.0)
        found, comparison = winner_of(prepared, trials, known=frozenset(), advisor=Answers(best=best))
        assert found is best
        assert comparison is not None
        assert comparison.best.throughputs == (402.0,)

    def test_the_own_config_of_another_tune_stays_the_winner(self, prepared: Prepared) -> None:
        before, *now = self.trials(prepared, 1, 2, 2)
        best = hoped(sized(1))
        answer = winner_of(prepared, [before, *now], known=frozenset({before.trial_id}), advisor=Answers(best=best))
        assert answer == (best, None)


def test_another_round_is_judged_by_its_own_method(prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[object] = []
    monkeypatch.setattr(
        "torchx_cubicml.tuner.proposer.expected_gain", lambda _, **given: judged.append(given.get("method")) or 0.5
    )
    method = ProposalMethod(acquisition="mean")
    snapshot = Snapshot(space=prepared.space, workload=prepared.workload, current=prepared.current, trials=[], seed=0)
    assert StudyProposer(predictor="", method=method).expected_gain(snapshot) == 0.5
    assert judged == [method]


@pytest.mark.parametrize(
    ("field", "least", "refused"),
    [
        ("repeats", 1, 0),
        ("parallel", 1, 0),
        ("step_limit", 5, 4),
        ("trial_timeout_s", 1e-9, 0.0),
        ("queue_timeout_s", 1e-9, 0.0),
        ("queue_timeout_s", 1.0, float("nan")),
        ("stop_under", 1e-9, 0.0),
        ("target_gain", 1.000001, 1.0),
        ("target_gain", None, 0.5),
        ("stop_under", None, -0.1),
        ("step_limit", None, -1),
    ],
)
def test_the_least_legal_value_of_a_request(
    request_: TuneRequest, field: str, least: float | None, refused: float
) -> None:
    assert getattr(replace(request_, **{field: least}), field) == least
    with pytest.raises(LaunchError, match=r"^--(repeats|parallel|steps|trial|queue|stop|target).* got "):
        replace(request_, **{field: refused})


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("repeats", 0, "--repeats must be >= 1, got 0"),
        ("step_limit", 4, "--steps must be >= 5, got 4"),
        ("queue_timeout_s", 0.0, "--queue-timeout must be a positive number of seconds, got 0.0"),
        ("trial_timeout_s", -2.0, "--trial-timeout must be a positive number of seconds, got -2.0"),
        ("stop_under", 0.0, "--stop-under must be a share above 0, such as 0.01, got 0.0"),
        ("target_gain", 1.0, "--target-gain must be a ratio above 1, such as 1.2, got 1.0"),
    ],
)
def test_a_refused_value_is_told_with_legal_ones(request_: TuneRequest, field: str, value: float, words: str) -> None:
    with pytest.raises(LaunchError) as raised:
        replace(request_, **{field: value})
    assert str(raised.value) == words


def test_a_request_has_these_defaults() -> None:
    request = TuneRequest(component="c", component_args=(), space="s", store="", scheduler="slurm")
    assert (request.budget, request.repeats, request.repeats_made, request.parallel) == (Budget(launches=16), 3, 3, 1)
    assert (request.trial_timeout_s, request.queue_timeout_s, request.seed) == (3600.0, 86_400.0, 0)
    assert (request.rounds, request.fresh, request.target_gain, request.stop_under) == (False, False, None, None)
    assert replace(request, budget=Budget(hours=1)).repeats_made == 3


def test_what_is_prepared_names_scheduler_store_and_scratch(
    request_: TuneRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "ada")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    prepared = prepare(request_)
    assert prepared.component.launch.scheduler == "local_cwd"
    assert prepared.store_url == str(tmp_path / "store")
    assert prepared.scratch == str(tmp_path / "torchx-cubicml-ada")
    assert prepared.predictor == ""
    assert prepare(replace(request_, scratch="/own")).scratch == "/own"


class TestStudyProposer:
    @pytest.fixture
    def snapshot(self, prepared: Prepared) -> Snapshot:
        trials = [measured(prepared, prepared.current, 100.0)]
        return Snapshot(
            space=prepared.space, workload=prepared.workload, current=prepared.current, trials=trials, seed=5
        )

    def test_a_report_has_the_confidence_of_the_verdict(
        self, snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rival = hoped(sized(2))
        asked: list[Config] = []

        def judged(study: Study, *, winner: Config) -> SimpleNamespace | None:
            del study
            asked.append(winner)
            return SimpleNamespace(confidence=0.75, rivals=(rival,)) if winner == sized(4) else None

        monkeypatch.setattr("torchx_cubicml.tuner.proposer.verdict", judged)
        monkeypatch.setattr("torchx_cubicml.tuner.proposer.sensitivity", lambda _, *, winner: (winner,))
        advisor = StudyProposer(predictor="")
        assert advisor.account(snapshot, sized(4)) == FinalReport(confidence=0.75, sensitivities=(sized(4),))
        assert advisor.account(snapshot, sized(2)) == FinalReport(confidence=None, sensitivities=(sized(2),))
        assert advisor.rivals(snapshot, sized(4)) == [rival]
        assert advisor.rivals(snapshot, sized(2)) == []
        assert asked == [sized(4), sized(2)] * 2

    def test_a_study_is_of_the_snapshot_that_is_asked_for(
        self, prepared: Prepared, snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made: list[tuple[History, int]] = []

        def study(history: History, *, seed: int) -> SimpleNamespace:
            made.append((history, seed))
            return SimpleNamespace(suggest=lambda *, method: [method], best_known=lambda: len(made))

        monkeypatch.setattr(Study, "fitted", study)
        advisor = StudyProposer.serving(replace(prepared, predictor="mlp"))
        assert advisor.suggest(snapshot) == [prepared.request.method]
        assert advisor.best_known(snapshot) == 1
        assert made == [(replace(snapshot, predictor="mlp"), 5)]
        assert advisor.best_known(replace(snapshot, seed=6)) == 2
        assert advisor.best_known(replace(snapshot, seed=6, trials=list(snapshot.trials))) == 3

    def test_nothing_is_known_without_a_measurement(self, snapshot: Snapshot) -> None:
        (own,) = snapshot.trials
        advisor = StudyProposer(predictor="")
        for trials in ([], [replace(own, measurement=None)], [replace(own, workload={"n_layers": 99})]):
            assert advisor.best_known(replace(snapshot, trials=trials)) is None
        assert advisor.best_known(snapshot) is not None
