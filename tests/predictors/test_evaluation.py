from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from torchx_cubicml.errors import RecordError
from torchx_cubicml.predictors import PREDICTORS, Prediction
from torchx_cubicml.predictors.evaluation import ReportCard, evaluate, grade, learning_curve
from torchx_cubicml.records.measurement import Measurement
from torchx_cubicml.records.trial import State, Trial


def made_up(count: int, *, seed: int = 0) -> list[Trial]:
    """Throughput grows with processes and batch; large batches on few processes run out of memory."""
    rng = np.random.default_rng(seed)
    trials = []
    for index in range(count):
        world_size, batch = 2 ** int(rng.integers(5)), 2 ** int(rng.integers(6))
        lost = batch > 8 * world_size
        speed = 100.0 * world_size**0.9 * batch**0.5 * float(np.exp(rng.normal(0, 0.03)))
        trials.append(
            Trial(
                trial_id=f"t{index:04d}",
                workload={"program": "a.py", "world_size": world_size},
                config={"micro_batch_size": batch},
                state=State.OUT_OF_MEMORY if lost else State.COMPLETED,
                measurement=None if lost else Measurement(tokens_per_second=speed),
                started_at=f"2026-01-{1 + index * 28 // count:02d}T00:00:00Z",
            )
        )
    return trials


TRIALS = made_up(200)


def card_of(**fields: object) -> ReportCard:
    given = {"predictor": "boosting", "split": "a fifth held out", "tau": 0.9, "pearson": 0.9, "spearman": 0.95}
    return ReportCard(**{**given, "regret": 0.1, "coverage": 0.8, "n_train": 80, "n_test": 20, **fields})


@pytest.mark.parametrize("split", ["random", "time", "scale", "workload"])
def test_learnable_trials_are_graded_well(split: str) -> None:
    card = evaluate(TRIALS, split=split)
    assert card.tau > 0.8
    assert card.pearson > 0.8
    assert card.spearman > 0.9
    assert 0.0 <= card.regret < 0.2
    assert 0.5 < card.coverage <= 1.0
    assert card.median_error < 0.2
    assert card.regret >= card.regret_of_3 >= card.regret_of_5 >= card.regret_of_10 >= 0.0
    measured = sum(trial.measurement is not None for trial in TRIALS)
    if split == "workload":
        assert card.n_test == measured
    else:
        assert card.n_train + card.n_test == measured


def test_random_trials_are_graded_badly() -> None:
    rng = np.random.default_rng(1)
    noise = [
        Trial.completed(workload={"world_size": 1}, config={"x": index}, tokens_per_second=float(rng.lognormal()))
        for index in range(200)
    ]
    assert abs(evaluate(noise).tau) < 0.4  # 40 held out: the standard deviation of tau is .11


def test_scale_holds_out_the_larger_jobs() -> None:
    card = evaluate(TRIALS, split="scale", max_world_size=4)
    beyond = [trial for trial in TRIALS if trial.workload["world_size"] > 4 and trial.measurement]
    assert card.n_test == len(beyond)
    assert "above 4 processes" in card.split


def test_some_large_jobs_may_be_known() -> None:
    without, card = (evaluate(TRIALS, split="scale", max_world_size=4, large=large) for large in (0, 7))
    assert card.n_test == without.n_test - 7
    assert card.n_train == without.n_train + 7
    assert "above 4 processes except 7" in card.split


def test_one_workload_cannot_be_left_out() -> None:
    one = [trial for trial in TRIALS if trial.workload["world_size"] == 4]
    with pytest.raises(RecordError, match="needs two workloads"):
        evaluate(one, split="workload")


def test_the_learning_curve_rises_to_all_that_is_known() -> None:
    curve = learning_curve(TRIALS, seeds=2)
    counts, taus = zip(*curve, strict=True)
    assert counts[:3] == (10, 20, 40)
    assert taus[-1] > taus[0] > 0.0
    with pytest.raises(RecordError, match="needs 10 measured trials"):
        learning_curve(TRIALS[:10])


def test_a_curve_has_no_point_where_all_jobs_held_out_are_equal() -> None:
    same = [Trial.completed(workload={}, config={"a": number}, tokens_per_second=100.0) for number in range(20)]
    assert learning_curve(same, seeds=1) == []


def test_time_holds_out_the_later_jobs_and_never_splits_a_moment() -> None:
    same = [Trial(**{**_fields(trial), "started_at": "2026-01-01T00:00:00Z"}) for trial in TRIALS]
    with pytest.raises(RecordError, match="0 measured trials to train on"):
        evaluate(same, split="time")


def test_same_seed_same_card_in_any_order() -> None:
    assert evaluate(TRIALS, seed=3) == evaluate(TRIALS[::-1], seed=3)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"split": "weekday"}, "unknown split 'weekday'; choose from random, time, scale, workload"),
        ({"predictor": "oracle"}, "unknown predictor 'oracle'; choose from "),
        ({"objective": "loss"}, "unknown objective 'loss'"),
        ({"split": "scale", "max_world_size": 1024}, "0 to predict"),
    ],
    ids=["split", "predictor", "objective", "nothing left"],
)
def test_illegal_input_is_refused(fields: dict[str, object], words: str) -> None:
    with pytest.raises(RecordError, match=words):
        evaluate(TRIALS, **fields)


@pytest.mark.parametrize("split", ["random", "time", "scale", "workload"])
def test_no_trials_are_refused(split: str) -> None:
    with pytest.raises(RecordError):
        evaluate([], split=split)


def test_trials_that_do_not_say_when_have_no_time_split() -> None:
    undated = [Trial(**{**_fields(trial), "started_at": ""}) for trial in TRIALS[:3]]
    with pytest.raises(RecordError, match="none of the 3 trials has one"):
        evaluate(undated, split="time")
    assert "(3 without a start time ignored)" in evaluate([*TRIALS, *undated], split="time").split


def test_the_scale_split_skips_trials_of_unknown_size() -> None:
    unsized = Trial.completed(workload={"program": "a.py"}, config={"micro_batch_size": 4}, tokens_per_second=1.0)
    assert "(1 without a world_size ignored)" in evaluate([*TRIALS, unsized], split="scale").split


def test_regret_is_what_the_first_proposal_loses() -> None:
    def trial(name: str, batch: int, speed: float | None) -> Trial:
        return Trial(
            trial_id=name,
            workload={"program": "a.py"},
            config={"micro_batch_size": batch},
            state=State.COMPLETED if speed else State.OUT_OF_MEMORY,
            measurement=Measurement(tokens_per_second=speed) if speed else None,
        )

    # Known: the larger the faster, so 8 is proposed; in truth 4 is the fastest of those held out.
    train = [trial("a", 1, 100.0), trial("b", 2, 200.0), trial("c", 16, 1600.0)]
    test = [trial("d", 4, 1000.0), trial("e", 8, 700.0)]
    card = grade(train, test, predictor="boosting", objective="tokens_per_second", split="by hand")
    assert card.regret == pytest.approx(0.3)
    card = grade(
        train, [*test, trial("f", 64, None)], predictor="boosting", objective="tokens_per_second", split="by hand"
    )
    assert card.regret == pytest.approx(1.0)  # 64 is proposed, and does not run


def test_one_trial_held_out_has_no_rank_and_no_regret() -> None:
    card = grade(TRIALS[:50], TRIALS[50:51], predictor="boosting", objective="tokens_per_second", split="by hand")
    assert math.isnan(card.tau)
    assert math.isnan(card.regret)
    assert card.to_json()["tau"] is None


def test_the_card_reads_as_one_paragraph() -> None:
    text = str(card_of(median_error=0.12, regret_of_5=0.05))
    assert text == (
        "boosting, a fifth held out: trained on 80 measured trials, tested on 20. Kendall's tau 0.90 (Pearson 0.90, "
        "Spearman 0.95); median error 12%; its first proposal reaches 90% of the best known throughput, the best of "
        "its first five 95%; its 80 % interval covers 80% of the measurements."
    )
    assert "no workload had two configs" in str(card_of(regret=math.nan))


def test_json_values_only() -> None:
    written = card_of(regret=math.nan).to_json()
    assert json.loads(json.dumps(written, allow_nan=False)) == written


def _fields(trial: Trial) -> dict[str, object]:
    return {name: getattr(trial, name) for name in Trial.__dataclass_fields__}


def test_a_card_says_where_trials_are_few_or_equal() -> None:
    rows = [{"program": "a.py", "world_size": 2 ** (n % 4)} for n in range(30)]
    speeds = ([100.0 + n for n in range(30)], [100.0] * 30)
    several, equal = (
        [
            Trial.completed(workload=row, config={"micro_batch_size": n}, tokens_per_second=speed)
            for n, (row, speed) in enumerate(zip(rows, each, strict=True))
        ]
        for each in speeds
    )
    assert "Only 6 trials were predicted" in str(evaluate(several, predictor="boosting"))
    assert "too few, or equally fast" in str(evaluate(equal, predictor="boosting"))


def test_the_workload_split_skips_other_units() -> None:
    strange = [
        Trial.completed(workload={"program": "b.py"}, config={"x": place}, samples_per_second=9.0 + place)
        for place in range(4)
    ]
    card, alone = evaluate([*TRIALS, *strange], split="workload"), evaluate(TRIALS, split="workload")
    assert card.split == "6 workloads held out in turn (1 skipped: not measured in tokens_per_second)"
    assert card.n_test == alone.n_test
    with pytest.raises(RecordError, match="4 measured trials to train on and 0 to predict"):
        evaluate([*TRIALS, *strange], split="workload", objective="samples_per_second")


def test_what_is_unknown_of_an_unmeasured_trial_is_no_loss() -> None:
    """The best proposal of all has no throughput: its loss is whole, unless it might have run."""
    known = [Trial.completed(workload={}, config={"x": x}, tokens_per_second=100.0 * x) for x in range(1, 41)]
    asked = [Trial.completed(workload={}, config={"x": x}, tokens_per_second=100.0 * x) for x in (5, 18)]
    losses = {}
    for state in (each for each in State if each.ended):
        odd = Trial(trial_id="odd", workload={}, config={"x": 30}, state=state)
        card = grade(known, [*asked, odd], predictor="boosting", objective="tokens_per_second", split="")
        assert (card.n_train, card.n_test) == (40, 2)
        losses[state] = (card.regret, card.regret_of_3)
    unknown = {State.COMPLETED, State.STOPPED_EARLY}
    assert losses == {state: (0.0, 0.0) if state in unknown else (1.0, 0.0) for state in losses}


@pytest.mark.parametrize(
    ("state", "n_test"), [(State.STOPPED_EARLY, 3), (State.TIMEOUT, 3), (State.OUT_OF_MEMORY, 2)], ids=str
)
def test_what_was_measured_before_a_failure_counts(state: State, n_test: int) -> None:
    known = [Trial.completed(workload={}, config={"x": x}, tokens_per_second=100.0 * x) for x in range(1, 41)]
    asked = [replace(known[index], trial_id=f"asked-{index}") for index in (3, 7, 30)]
    asked[2] = replace(asked[2], state=state)
    card = grade(known, asked, predictor="boosting", objective="tokens_per_second", split="")
    assert card.n_test == n_test
    assert card.regret == (0.0 if n_test == 3 else 1.0)


def test_the_loss_is_that_of_the_best_of_so_many_proposals() -> None:
    """Twelve configs, of which the predictor knows the reverse order: each proposal is faster than the one before."""
    known = [Trial.completed(workload={}, config={"x": x}, tokens_per_second=1000.0 / x) for x in range(1, 41)]
    asked = [Trial.completed(workload={}, config={"x": 3 * x}, tokens_per_second=100.0 * x) for x in range(1, 13)]
    card = grade(known, asked, predictor="boosting", objective="tokens_per_second", split="")
    losses = (card.regret, card.regret_of_3, card.regret_of_5, card.regret_of_10)
    assert losses == pytest.approx((11 / 12, 9 / 12, 7 / 12, 2 / 12))
    assert (card.tau, card.pearson < 0.0, card.spearman) == pytest.approx((-1.0, True, -1.0))


def test_a_workload_with_one_config_has_no_loss() -> None:
    known = [Trial.completed(workload={}, config={"x": x}, tokens_per_second=100.0 * x) for x in range(1, 11)]
    card = grade(known, known[:1], predictor="boosting", objective="tokens_per_second", split="")
    assert math.isnan(card.regret)
    assert math.isnan(card.tau)
    with pytest.raises(RecordError, match="here: 10 measured trials to train on and 0 to predict; both must be >= 1"):
        grade(known, [], predictor="boosting", objective="tokens_per_second", split="here")
    with pytest.raises(RecordError, match="here: 0 measured trials to train on and 1 to predict"):
        grade([], known[:1], predictor="boosting", objective="tokens_per_second", split="here")


def test_a_workload_where_nothing_ran_has_no_loss() -> None:
    known = [Trial.completed(workload={}, config={"x": x}, tokens_per_second=100.0 * x) for x in range(1, 11)]
    lost = [Trial.infeasible(workload={"program": "b.py"}, config={"x": x}) for x in (2, 3)]
    card = grade(known, [*known[:4], *lost], predictor="boosting", objective="tokens_per_second", split="")
    assert (card.regret, card.n_test) == (0.0, 4)


@pytest.mark.parametrize(("predicted", "measured"), [((1, 1), (1, 2)), ((1, 2), (1, 1)), ((1, 1), (1, 1))])
def test_equal_speeds_have_no_rank(
    predicted: tuple[int, int], measured: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Given:
        def fit(self, history: object, *, rng: object) -> Given:
            return self

        def predict(self, features: np.ndarray) -> Prediction:
            return Prediction(logarithm=np.log(predicted), spread=np.full(len(features), 0.1))

    monkeypatch.setitem(PREDICTORS, "given", Given)
    test = [Trial.completed(workload={}, config={"x": x}, tokens_per_second=100.0 * m) for x, m in enumerate(measured)]
    card = grade(test, test, predictor="given", objective="tokens_per_second", split="")
    assert [math.isnan(each) for each in (card.tau, card.pearson, card.spearman)] == [True] * 3


def test_the_unit_is_that_of_most_trials_unless_named() -> None:
    trials = [
        Trial(**{**_fields(trial), "measurement": Measurement(samples_per_second=rate)})
        for trial in TRIALS
        if (rate := trial.throughput("tokens_per_second"))
    ]
    assert evaluate([*trials, *TRIALS[:2]]) == evaluate([*trials, *TRIALS[:2]], objective="samples_per_second")
    with pytest.raises(RecordError, match="0 measured trials"):
        evaluate(trials, objective="tokens_per_second")
    assert learning_curve(trials, seeds=1) == learning_curve(trials, objective="samples_per_second", seeds=1)
