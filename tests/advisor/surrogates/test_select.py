from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from torchx_cubicml.advisor.surrogates.base import JointSurrogate, TrainingData
from torchx_cubicml.advisor.surrogates.cross_workload import CrossWorkloadSurrogate, GeometricMeanEnsemble
from torchx_cubicml.advisor.surrogates.per_workload import PerWorkloadSurrogate
from torchx_cubicml.advisor.surrogates.select import fit_surrogate
from torchx_cubicml.advisor.surrogates.transfer_prior import fit_cached_predictor
from torchx_cubicml.advisor.trial_data import informative_trials, nearest_trials
from torchx_cubicml.predictors import DEFAULT_PREDICTOR, Prediction
from torchx_cubicml.predictors.boosting import Boosting
from torchx_cubicml.predictors.features.history import TrainingTable
from torchx_cubicml.predictors.memory.order import MemoryOrder
from torchx_cubicml.records.trial import Trial

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torchx_cubicml.advisor.surrogates.base import Surrogate
    from torchx_cubicml.records.values import Value

WORKLOAD = {"program": "a.py", "world_size": 1}


def data_of(trials: list[Trial], tuned: dict[str, tuple[object, ...]]) -> TrainingData:
    """The trials of one workload, none of them repeated."""
    return TrainingData(
        all_trials=trials,
        own=trials,
        objective="tokens_per_second",
        observe={},
        order=MemoryOrder.of_names([]),
        tuned=tuned,
        noise=None,
    )


def ran(batch: int, kind: str = "a", *, program: str = "a.py", scale: float = 1.0) -> Trial:
    speed = scale * batch**0.5 * (1.5 if kind == "b" else 1.0)
    workload = {**WORKLOAD, "program": program}
    return Trial.completed(workload=workload, config={"batch": batch, "kind": kind}, tokens_per_second=speed)


def surrogate_of(own: list[Trial], others: list[Trial]) -> Surrogate:
    data = TrainingData(
        all_trials=[*own, *others],
        own=own,
        objective="tokens_per_second",
        observe={},
        order=MemoryOrder.of_names(["program", "batch", "kind"]),
        tuned={"batch": (1, 2, 4, 8, 16), "kind": ("a", "b")},
        noise=None,
    )
    return fit_surrogate(data, rng=np.random.default_rng(0))


def row(batch: int, kind: str) -> dict[str, object]:
    return {**WORKLOAD, "batch": batch, "kind": kind}


ELSEWHERE = [ran(batch, kind, program="b.py", scale=7.0) for batch in (1, 2, 4, 8, 16) for kind in "ab"] * 3


def test_a_new_workload_is_predicted_from_all_others() -> None:
    assert isinstance(surrogate_of([], ELSEWHERE), CrossWorkloadSurrogate)
    assert not isinstance(surrogate_of([], ELSEWHERE), JointSurrogate)
    assert isinstance(surrogate_of([ran(1), ran(2)], []), CrossWorkloadSurrogate)


def test_three_measurements_speak_for_themselves() -> None:
    surrogate = surrogate_of([ran(1), ran(2), ran(4)], [])
    assert isinstance(surrogate, PerWorkloadSurrogate)
    assert isinstance(surrogate, JointSurrogate)
    assert surrogate.prior is None
    assert np.exp(surrogate.forecast([row(2, "a")]).logarithm) == pytest.approx([2**0.5], rel=0.05)


def test_other_workloads_are_kept_where_they_help() -> None:
    own = [ran(1, scale=100.0), ran(2, scale=100.0), ran(4, scale=100.0), ran(8, scale=100.0)]
    surrogate = surrogate_of(own, ELSEWHERE)
    assert isinstance(surrogate, PerWorkloadSurrogate)
    assert surrogate.prior is not None
    # Kind b was never launched here.
    assert np.exp(surrogate.forecast([row(16, "b")]).logarithm) == pytest.approx([600.0], rel=0.15)


def test_other_workloads_are_dropped_where_they_mislead() -> None:
    rng = np.random.default_rng(0)
    misleading = [ran(batch, program="b.py", scale=float(rng.uniform(0.1, 10))) for batch in (1, 2, 4, 8, 16) * 6]
    surrogate = surrogate_of([ran(batch) for batch in (1, 2, 4, 8, 16)], misleading)
    assert isinstance(surrogate, PerWorkloadSurrogate)
    assert surrogate.prior is None


def test_a_supposed_outcome_removes_the_uncertainty_of_a_row() -> None:
    surrogate = surrogate_of([ran(1), ran(2), ran(4)], [])
    (before,) = surrogate.forecast([row(16, "b")]).spread
    (after,) = surrogate.fantasize([row(16, "b")]).forecast([row(16, "b")]).spread
    assert after < 0.5 * before
    assert surrogate.fantasize([]) is surrogate


def test_the_nearest_and_latest_trials_teach() -> None:
    workload: dict[str, Value] = {"program": "a.py", "world_size": 8, "n_layers": 4}
    kinds = [workload, {**workload, "n_layers": 2}, {"program": "b.py", "world_size": 8}, {"program": "c.py"}]
    trials = [
        replace(
            Trial.completed(workload=facts, config={"batch": day}, tokens_per_second=1.0),
            ended_at=f"2026-01-{day:02}T00:00:00+00:00",
        )
        for day in range(1, 11)
        for facts in kinds
    ]
    found = nearest_trials(reversed(trials), workload, count=15)
    assert found == nearest_trials(trials, workload, count=15)
    assert [trial.workload for trial in found].count(workload) == 10
    assert sorted(trial.config["batch"] for trial in found if trial.workload == kinds[1]) == [6, 7, 8, 9, 10]
    assert nearest_trials(trials, workload, count=40) == trials


def test_failures_however_near_leave_room_for_what_was_measured() -> None:
    workload: dict[str, Value] = {"program": "a.py"}
    slow = [Trial.completed(workload={}, config={"batch": each}, tokens_per_second=1.0) for each in range(30)]
    lost = [Trial.infeasible(workload=workload, config={"batch": each}) for each in range(100)]
    found = informative_trials([*slow, *lost], workload, count=40)
    assert [trial.measurement is not None for trial in found].count(True) == 20
    assert len(found) == 40
    assert informative_trials([*slow[:3], *lost], workload, count=40)[:3] == slow[:3]
    assert informative_trials([*slow, *lost], workload, count=200) == [*slow, *lost]


@pytest.mark.parametrize(("n_own", "asked"), [(0, True), (2, True), (301, False)])
def test_other_predictors_are_asked_while_a_workload_is_new(n_own: int, asked: bool) -> None:
    own = [ran(batch) for batch in (1, 2, 4, 8, 16) * 61][:n_own]
    surrogate = surrogate_of(own, [ran(batch, program="b.py") for batch in (1, 2, 4, 8, 16) * 6])
    assert isinstance(surrogate, CrossWorkloadSurrogate)
    assert bool(surrogate.others) is asked


@pytest.mark.parametrize(
    ("program", "one", "count"),
    [("b.py", True, 1), ("b.py", False, 1), ("c.py", True, 1), ("c.py", False, 3)],
    ids=["all facts seen", "for a batch", "a fact never seen", "that for a batch"],
)
def test_predictors_take_turns_on_unseen_facts(program: str, one: bool, count: int) -> None:
    elsewhere = [
        replace(trial, workload={**trial.workload, "world_size": 1 + place % 2})
        for place, trial in enumerate(ELSEWHERE)
    ]
    seen = [replace(trial, workload={"program": "a.py", "world_size": 2}) for trial in ELSEWHERE]
    data = replace(data_of([*elsewhere, *seen], {}), own=[], workload={"program": program, "world_size": 2})
    data = replace(data, all_trials=[trial for trial in data.all_trials if trial.workload != data.workload])
    surrogate = fit_surrogate(data, rng=np.random.default_rng(0))
    ensemble = surrogate.ensemble(one=one)
    assert len(ensemble) == count
    logarithms = [each.forecast([row(2, "a"), row(16, "b")]).logarithm for each in ensemble]
    alone = surrogate.forecast([row(2, "a"), row(16, "b")]).logarithm
    assert (logarithms[0] == alone).all() == (program == "c.py")


def test_agreeing_predictors_give_their_geometric_mean() -> None:
    class Fixed:
        def __init__(self, *throughput: float) -> None:
            self.throughput = np.array(throughput)

        def predict(self, features: NDArray[np.float64]) -> Prediction:
            return Prediction(logarithm=np.log(self.throughput), spread=0.01 * self.throughput)

    first, other = Fixed(1.0, 4.0, np.nan), Fixed(100.0, np.nan, 2.0)
    predicted = GeometricMeanEnsemble(first=first, others=[other]).predict(np.empty((3, 0)))
    assert predicted.throughput[:2].tolist() == pytest.approx([10.0, 4.0])
    assert np.isnan(predicted.throughput[2])
    assert predicted.spread[:2].tolist() == [0.01, 0.04]


def test_a_chosen_predictor_is_not_outvoted() -> None:
    data = replace(data_of(ELSEWHERE, {}), own=[], predictor="boosting")
    (surrogate,) = fit_surrogate(data, rng=np.random.default_rng(0)).ensemble(one=True)
    assert isinstance(surrogate, CrossWorkloadSurrogate)
    assert isinstance(surrogate.predictor, Boosting)


def test_a_fitted_predictor_is_kept_for_its_history() -> None:
    history, more = (
        TrainingTable.from_trials(trials, objective="tokens_per_second") for trials in (ELSEWHERE, ELSEWHERE[:25])
    )
    first = fit_cached_predictor(history, DEFAULT_PREDICTOR)
    assert fit_cached_predictor(history, DEFAULT_PREDICTOR) is first
    assert fit_cached_predictor(more, DEFAULT_PREDICTOR) is not first
    assert fit_cached_predictor(history, "boosting") is not first
    again = fit_cached_predictor(history, DEFAULT_PREDICTOR)
    assert again is not first  # which was forgotten meanwhile
    assert (again.predict(history.features).throughput == first.predict(history.features).throughput).all()


def test_a_fit_is_kept_by_all_that_it_depends_on() -> None:
    history = TrainingTable.from_trials(ELSEWHERE, objective="tokens_per_second")
    unsure = replace(history, uncertainty=np.full(len(ELSEWHERE), 0.1))
    unknown = replace(history, uncertainty=None)
    faster = replace(history, throughput=2.0 * history.throughput)
    other = replace(history, features=history.features[::-1].copy())
    for variant in (unsure, unknown, faster, other):
        kept = fit_cached_predictor(history, DEFAULT_PREDICTOR)
        assert fit_cached_predictor(variant, DEFAULT_PREDICTOR) is not kept
        assert fit_cached_predictor(replace(variant), DEFAULT_PREDICTOR) is fit_cached_predictor(
            variant, DEFAULT_PREDICTOR
        )


@pytest.mark.parametrize("layered", [True, False], ids=["per-layer parameters", "plain parameters"])
def test_the_prior_mean_favours_larger_batches_beside_layers(layered: bool) -> None:
    kind = ("a", "a") if layered else "a"

    def measured(batch: int) -> Trial:
        config = {"micro_batch_size": batch, "kind": kind}
        return Trial.completed(workload=WORKLOAD, config=config, tokens_per_second=100.0)

    trials = [measured(1), measured(2), measured(3)]
    data = data_of(trials, {"micro_batch_size": (1, 2, 3, 16), "kind": ("a", "b")})
    surrogate = fit_surrogate(data, rng=np.random.default_rng(0))
    untried = [{**WORKLOAD, "micro_batch_size": 16, "kind": kind}]
    assert surrogate.forecast(untried).logarithm == pytest.approx([np.log(100.0)], abs=0.02)
    optimistic = surrogate.optimistic()
    assert bool(optimistic.forecast(untried).logarithm[0] > np.log(105.0)) is layered
    assert optimistic.optimistic().forecast(untried).logarithm == optimistic.forecast(untried).logarithm


def test_without_a_favoured_parameter_there_is_no_optimism() -> None:
    trials = [
        Trial.completed(workload=WORKLOAD, config={"kind": kind}, tokens_per_second=100.0 + len(set(kind)))
        for kind in (("a", "a"), ("a", "b"), ("b", "b"))
    ]
    surrogate = fit_surrogate(data_of(trials, {"kind": ("a", "b")}), rng=np.random.default_rng(0))
    assert isinstance(surrogate, PerWorkloadSurrogate)
    assert surrogate.optimistic() is surrogate


def test_the_prior_mean_favours_more_memory() -> None:
    def of(sharding: str, checkpointing: str) -> dict[str, Value]:
        return {"sharding_strategy": (sharding,) * 4, "activation_checkpointing": checkpointing}

    trials = [
        Trial.completed(workload=WORKLOAD, config=of("FULL_SHARD", "full"), tokens_per_second=speed)
        for speed in (99.0, 100.0, 101.0)
    ]
    tuned = {
        "sharding_strategy": ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"),
        "activation_checkpointing": ("full", "none"),
    }
    data = data_of(trials, tuned)
    surrogate = fit_surrogate(data, rng=np.random.default_rng(0))
    asked = [
        {**WORKLOAD, **of(*each)} for each in (("SHARD_GRAD_OP", "full"), ("NO_SHARD", "full"), ("FULL_SHARD", "none"))
    ]
    assert surrogate.forecast(asked).logarithm == pytest.approx([np.log(100.0)] * 3, abs=0.02)
    sharded_less, not_sharded, kept = surrogate.optimistic().forecast(asked).logarithm
    assert np.log(101.0) < sharded_less < not_sharded
    assert kept > np.log(101.0)


def test_ratios_and_samples_are_of_one_posterior() -> None:
    """Over 20,000 joint draws, means agree within four standard errors and spreads within a tenth."""
    surrogate = surrogate_of([ran(1), ran(2), ran(2, scale=1.1), ran(8, "b")], ELSEWHERE)
    assert isinstance(surrogate, JointSurrogate)
    rows, over = [row(1, "a"), row(4, "a"), row(16, "b")], row(2, "b")
    drawn = surrogate.sample([*rows, over], count=20_000, rng=np.random.default_rng(0))
    assert drawn.shape == (20_000, 4)
    ahead = drawn[:, :3] - drawn[:, 3:]
    ratios = surrogate.ratios(rows, over)
    assert (np.abs(ahead.mean(axis=0) - ratios.logarithm) < 4 * ratios.spread / 20_000**0.5).all()
    assert ahead.std(axis=0) == pytest.approx(ratios.spread, rel=0.1)


def test_a_config_is_exactly_as_fast_as_itself() -> None:
    ratio = surrogate_of([ran(1), ran(2), ran(4)], []).ratios([row(2, "a")], row(2, "a"))
    assert ratio.logarithm == pytest.approx([0.0])
    assert ratio.spread < 1e-4


def test_a_measured_workload_has_one_surrogate() -> None:
    surrogate = surrogate_of([ran(1), ran(2), ran(4)], [])
    assert surrogate.ensemble(one=False) == [surrogate]


def test_a_risky_running_launch_lowers_similar_fits() -> None:
    lost = [Trial.infeasible(workload=WORKLOAD, config={"batch": 16, "kind": "a"})] * 2
    surrogate = surrogate_of([ran(1), ran(2), ran(4), *lost], [])
    risky, safe = row(8, "a"), row(2, "a")
    before = surrogate.forecast([risky, safe]).fits
    assert before[0] < 0.8 < before[1]
    assert surrogate.fantasize([risky]).forecast([row(8, "b")]).fits[0] < surrogate.forecast([row(8, "b")]).fits[0]
    assert surrogate.fantasize([safe]).forecast([risky, safe]).fits == pytest.approx(before)


def test_half_of_the_informative_trials_are_measured() -> None:
    measured = [Trial.completed(workload={}, config={"batch": each}, tokens_per_second=1.0) for each in range(9)]
    lost = [Trial.infeasible(workload={"program": "a.py"}, config={"batch": each}) for each in range(9)]
    for count in range(2, 12):
        found = informative_trials([*measured, *lost], {"program": "a.py"}, count=count)
        assert len(found) == count
        assert sum(trial.measurement is not None for trial in found) == count // 2


class TestCrossWorkloadSurrogate:
    def surrogate(self, *spreads: float) -> CrossWorkloadSurrogate:
        class Fixed:
            def predict(self, features: NDArray[np.float64]) -> Prediction:
                del features
                return Prediction(logarithm=np.full(len(spreads), np.log(100.0)), spread=np.array(spreads))

        found = surrogate_of([], ELSEWHERE)
        assert isinstance(found, CrossWorkloadSurrogate)
        return replace(found, predictor=Fixed(), noise=0.3)

    def test_the_spread_excludes_measurement_noise(self) -> None:
        surrogate = self.surrogate(0.5, 0.3, 0.31, 3.0)
        found = surrogate.forecast([row(1, "a")] * 4)
        assert found.spread == pytest.approx([0.4, 0.09, 0.093, 8.91**0.5])  # 0.31^2 - 0.3^2 is less than 0.093^2
        assert found.logarithm == pytest.approx([np.log(100.0)] * 4)

    def test_fantasies_and_optimism_change_nothing(self) -> None:
        surrogate = self.surrogate(0.5)
        assert surrogate.outliers([row(1, "a"), row(2, "b")]).tolist() == [False, False]
        assert surrogate.optimistic() is surrogate
        assert surrogate.fantasize([]) is surrogate
        assert surrogate.fantasize([row(1, "a")]).feasibility is surrogate.feasibility  # it likely fits

    def test_a_sampled_function_has_one_value_for_each_config(self) -> None:
        """Over 400 configs the standard deviation is off by more than a sixth once in 200,000 runs."""
        surrogate = self.surrogate(*[0.5] * 400)
        sampled = surrogate.sample_function([], rng=np.random.default_rng(0))
        rows = [row(batch, "a") for batch in range(400)]
        values = sampled.forecast(rows).logarithm - np.log(100.0)
        assert (sampled.forecast(rows).logarithm == values + np.log(100.0)).all()
        assert values.std() == pytest.approx(0.4, rel=1 / 6)
        assert (sampled.forecast(rows[::-1]).logarithm[::-1] == values + np.log(100.0)).all()
        other = surrogate.sample_function([], rng=np.random.default_rng(1)).forecast(rows).logarithm - np.log(100.0)
        assert abs(np.corrcoef(values, other)[0, 1]) < 0.25


def batch_trial(batch: int, *, program: str = "a.py", scale: float = 100.0) -> Trial:
    speed = scale * batch**0.5
    workload = {**WORKLOAD, "program": program}
    return Trial.completed(workload=workload, config={"micro_batch_size": batch}, tokens_per_second=speed)


def test_a_transfer_prior_takes_the_place_of_optimism() -> None:
    own = [batch_trial(batch) for batch in (1, 2, 4, 8)]
    own = [replace(each, config={**each.config, "kind": ("a", "a")}) for each in own]
    others = [batch_trial(batch, program="b.py", scale=700.0) for batch in (1, 2, 4, 8, 16, 32)] * 4
    data = data_of(own, {"micro_batch_size": (1, 2, 4, 8, 16, 32), "kind": ("a", "b")})
    alone = fit_surrogate(data, rng=np.random.default_rng(0))
    with_others = fit_surrogate(replace(data, all_trials=[*own, *others]), rng=np.random.default_rng(0))
    assert (alone.prior, with_others.prior is None) == (None, False)
    assert alone.optimistic() is not alone
    assert with_others.optimistic() is with_others


@pytest.mark.parametrize(("measured", "own_process"), [(2, False), (3, True), (300, True), (301, False)])
def test_three_to_three_hundred_measurements_use_a_process(measured: int, own_process: bool) -> None:
    own = [ran(1 + each % 16, "ab"[each % 2]) for each in range(measured)]
    lost = [Trial.infeasible(workload=WORKLOAD, config={"batch": 16, "kind": "b"})] * 2
    assert isinstance(surrogate_of([*own, *lost], []), PerWorkloadSurrogate) is own_process


def test_a_transfer_prior_needs_twenty_trials() -> None:
    own = [ran(batch, scale=100.0) for batch in (1, 2, 4, 8)]
    assert surrogate_of(own, ELSEWHERE[:19]).prior is None
    assert surrogate_of(own, ELSEWHERE[:20]).prior is not None


def test_the_process_gets_what_is_known_of_the_workload() -> None:
    trials = [
        Trial.completed(
            workload=WORKLOAD, config={"batch": batch}, tokens_per_second=9.0 * batch, peak_memory_gib=2.0 + batch
        )
        for batch in range(1, 9)
    ]
    tuned = {"batch": tuple(range(1, 17))}
    data = replace(data_of(trials, tuned), order=MemoryOrder.of_names(["batch"]), noise=0.123)
    surrogate = fit_surrogate(data, rng=np.random.default_rng(0))
    assert (surrogate.process.noise, surrogate.process.tuned) == (0.123, tuned)
    assert surrogate.process.memory_pressure == surrogate.memory.memory_pressure  # the peaks tell where the limit is
    assert (surrogate.memory.order, surrogate.memory.tuned) == (data.order, tuned)
    bare = [replace(trial, measurement=replace(trial.measurement, peak_memory_gib=None)) for trial in trials]
    assert fit_surrogate(data_of(bare, tuned), rng=np.random.default_rng(0)).process.memory_pressure is None
