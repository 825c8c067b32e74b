"""The posterior of a workload, with a surrogate chosen by hand or found in its training data."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.advisor.by_hand import Process, Trees, of, places_of, study_of
from torchx_cubicml.advisor.posterior import Posterior, ranked, with_pinned_choices
from torchx_cubicml.predictors.boosting import Boosting
from torchx_cubicml.predictors.greybox import Greybox
from torchx_cubicml.predictors.intervals import NOISE_FLOOR
from torchx_cubicml.records.trial import Trial
from torchx_cubicml.space import Parameter, SearchSpace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

WORKLOAD = {"program": "a.py", "world_size": 1}
SPACE = SearchSpace(
    parameters=(
        Parameter(name="micro_batch_size", choices=(1, 2, 4, 8)),
        Parameter(name="backend", choices=("a", "b")),
        Parameter(name="fixed", choices=("only",)),
    )
)
CURRENT = {"micro_batch_size": 1, "backend": "a", "fixed": "only"}


def ran(
    batch: int, speed: float, *, config: Mapping[str, object] = CURRENT, workload: Mapping[str, object] = WORKLOAD
) -> Trial:
    return Trial.completed(
        workload=dict(workload), config={**config, "micro_batch_size": batch}, tokens_per_second=speed
    )


def posterior_of(trials: Sequence[Trial], *, space: SearchSpace = SPACE, **given: object) -> Posterior:
    return Posterior.of(
        space.bind(workload=WORKLOAD, current=CURRENT),
        workload=WORKLOAD,
        current=CURRENT,
        trials=trials,
        rng=np.random.default_rng(0),
        **given,
    )


class TestRanked:
    def test_configs_are_by_mean_and_outliers_apart(self) -> None:
        speeds = {1: 10.0, 2: 40.0, 3: 30.0, 4: 20.0, 5: 50.0}
        found = ranked(
            study_of(Process(speeds=speeds.__getitem__, slowed=frozenset({2, 4})), dict.fromkeys(speeds, 1.0)).posterior
        )
        assert (places_of(found.trusted), places_of(found.doubted)) == ([5, 3, 1], [2, 4])

    def test_where_all_are_outliers_all_are_trusted(self) -> None:
        surrogate = Process(speeds=lambda place: place + 1.0, slowed=frozenset({1, 2}))
        found = ranked(study_of(surrogate, {1: 1.0, 2: 1.0}).posterior)
        assert (places_of(found.trusted), found.doubted) == ([2, 1], ())

    def test_equal_means_keep_their_order(self) -> None:
        order = np.random.default_rng(0).permutation(90).tolist()
        found = ranked(study_of(Process(speeds=lambda place: 1.0 + place % 2), dict.fromkeys(order, 1.0)).posterior)
        assert places_of(found.trusted) == sorted(order, key=lambda place: -(place % 2))

    def test_without_measurements_there_are_none(self) -> None:
        found = ranked(study_of(Process(), {}, running=[3]).posterior)
        assert (found.trusted, found.doubted) == ((), ())


def test_a_parameter_without_effect_has_its_pinned_choice() -> None:
    posterior = replace(posterior_of([]), ineffective=("fixed",))
    config = {"micro_batch_size": 4, "backend": "b", "fixed": "other"}
    assert with_pinned_choices(posterior, config) == {**config, "fixed": "only"}
    assert with_pinned_choices(posterior_of([]), config) == config


class TestTrainingData:
    def test_the_noise_is_that_of_repeats(self) -> None:
        once = posterior_of([ran(1, 100.0), ran(2, 150.0)])
        assert once.surrogate.noise == NOISE_FLOOR
        twice = posterior_of([ran(1, 100.0), ran(1, 130.0)])
        assert twice.noise > twice.surrogate.noise > once.noise

    def test_repeats_of_others_count_beside_own_ones(self) -> None:
        others = [ran(2, speed, workload={"program": "b.py", "world_size": 1}) for speed in (100.0, 101.0, 100.5)]
        own = [ran(1, 100.0), ran(1, 103.0)]
        assert posterior_of([*own, *others]).noise < posterior_of(own).noise

    @pytest.mark.parametrize(
        ("given", "kind"),
        [({}, Greybox), ({"predictor": "boosting"}, Boosting), ({"predictor": "of later versions"}, Greybox)],
    )
    def test_an_unknown_predictor_means_the_default(self, given: dict[str, str], kind: type) -> None:
        assert isinstance(posterior_of([ran(1, 100.0)], **given).surrogate.predictor, kind)

    def test_a_fact_never_seen_elsewhere_separates_predictors(self) -> None:
        for size, agree in ((1, True), (2, False)):
            others = [
                *(ran(batch, 9.0, workload={"program": "a.py", "world_size": 4}) for batch in (1, 2)),
                *(ran(batch, 9.0, workload={"program": "b.py", "world_size": size}) for batch in (1, 2)),
            ]
            assert posterior_of(others).surrogate.agreeing is agree

    def test_rounds_that_follow_from_the_batch_hide_no_failure(self) -> None:
        """Half as many rounds of twice the batch take no less memory."""
        rounds = Parameter(name="gradient_accumulation_steps", choices=(1, 2, 4, 8))
        space = replace(SPACE, parameters=(SPACE.parameters[0], rounds))

        def of_two(batch: int, steps: int) -> dict[str, object]:
            return {"micro_batch_size": batch, "gradient_accumulation_steps": steps}

        lost = Trial.infeasible(workload=WORKLOAD, config=of_two(4, 2))
        fits = (
            posterior_of([lost, ran(1, 100.0, config=of_two(1, 8))], space=space)
            .forecast([of_two(8, 1), of_two(8, 8), of_two(2, 2)])
            .fits
        )
        assert fits[:2].tolist() == [0.0, 0.0]
        assert fits[2] > 0.0

    def test_a_failure_rules_out_its_own_choices_alone(self) -> None:
        lost = Trial.infeasible(workload=WORKLOAD, config={**CURRENT, "micro_batch_size": 4})
        larger = {**CURRENT, "micro_batch_size": 8}
        fits = posterior_of([lost, ran(1, 100.0)]).forecast([larger, {**larger, "backend": "b"}]).fits
        assert fits[0] == 0.0 < fits[1]


OTHER = {"program": "b.py", "world_size": 1}
FULL = {"micro_batch_size": 1, "backend": "a"}


@pytest.mark.parametrize(
    ("others", "informative"),
    [
        ([ran(2, 9.0, config=FULL, workload=OTHER)] * 19, False),
        ([ran(2, 9.0, config=FULL, workload=OTHER)] * 20, True),  # the parameter of one choice is not asked for
        ([ran(2, 9.0, config={**FULL, "more": 1}, workload=OTHER)] * 25, True),
        ([ran(2, 9.0, config={"micro_batch_size": 1}, workload=OTHER)] * 25, False),
        ([Trial.infeasible(workload=OTHER, config=FULL)] * 25, False),
        ([ran(2, 9.0, config=FULL)] * 25, False),  # the workload's own
    ],
    ids=["nineteen", "twenty", "more known", "less known", "not measured", "own"],
)
def test_twenty_trials_of_others_are_a_prior(others: list[Trial], informative: bool) -> None:
    assert posterior_of(others).has_transfer_prior is informative


TRANSFORMER = {
    "n_layers": 24,
    "d_model": 2048,
    "n_heads": 16,
    "vocab_size": 50_000,
    "seq_len": 2048,
    "device": "NVIDIA H100 80GB HBM3",
}


def test_formulas_that_cover_a_measured_trial_are_a_prior() -> None:
    trials = [replace(ran(1, 100.0), observed=TRANSFORMER)]
    assert posterior_of(trials).has_transfer_prior
    assert not posterior_of([ran(1, 100.0)]).has_transfer_prior


class TestPredictions:
    def test_no_configs_have_no_estimate(self) -> None:
        posterior = study_of(Trees(speeds=lambda place: place + 1.0), {1: 1.0}).posterior
        assert len(posterior.estimates([]).logarithm) == 0

    def test_trees_are_combined_with_measurements(self) -> None:
        posterior = study_of(Trees(speeds=lambda place: 100.0, spread=0.1), {1: 200.0}).posterior
        posterior = replace(posterior, noise=0.1)
        found = posterior.estimates(of(1, 2))
        assert found.throughput == pytest.approx([100.0 * 2.0**0.5, 100.0])
        assert found.spread == pytest.approx([0.1 / 2.0**0.5, 0.1])

    def test_a_process_knows_the_measurements_itself(self) -> None:
        posterior = study_of(Process(speeds=lambda place: 100.0, spread=0.1), {1: 200.0}).posterior
        assert posterior.estimates(of(1, 2)).throughput == pytest.approx([100.0, 100.0])

    def test_independent_gains_add_their_spreads(self) -> None:
        speeds = {1: 100.0, 2: 150.0, 3: 80.0}
        posterior = study_of(Trees(speeds=speeds.__getitem__, spread=0.3), {}).posterior
        gains = posterior.gains(of(2, 3, 1), of(1)[0])
        assert gains.throughput == pytest.approx([1.5, 0.8, 1.0])
        assert gains.spread == pytest.approx([0.3 * 2.0**0.5, 0.3 * 2.0**0.5, 0.0])

    def test_a_measured_config_has_a_surer_gain(self) -> None:
        posterior = study_of(Trees(speeds=lambda place: 100.0, spread=0.3), {2: 100.0}).posterior
        posterior = replace(posterior, noise=0.4)
        known = (0.3**-2 + 0.4**-2) ** -0.5
        assert posterior.gains(of(3, 2, 4), of(1)[0]).spread == pytest.approx(np.hypot([0.3, known, 0.3], 0.3))
        assert posterior.gains(of(3, 4), of(2)[0]).spread == pytest.approx(np.hypot([0.3, 0.3], known))

    def test_gains_of_a_process_are_its_own_ratios(self) -> None:
        speeds = {1: 100.0, 2: 150.0, 3: 80.0}
        posterior = study_of(Process(speeds=speeds.__getitem__, spread=0.2), {1: 9.0}).posterior
        gains = posterior.gains(of(2, 3, 1), of(1)[0])
        assert gains.throughput == pytest.approx([1.5, 0.8, 1.0])
        assert gains.spread == pytest.approx([0.2, 0.2, 0.0])

    @pytest.mark.parametrize("kind", [Trees, Process])
    def test_an_unknown_config_has_no_gain(self, kind: type[Trees]) -> None:
        speeds = {1: 100.0, 2: np.nan, 3: 80.0}
        posterior = study_of(kind(speeds=speeds.__getitem__), {}).posterior
        assert [each is None for each in posterior.gains(of(2, 3), of(1)[0]).intervals()] == [True, False]
        assert [each is None for each in posterior.gains(of(3, 2), of(1)[0]).intervals()] == [False, True]
        assert [each is None for each in posterior.gains(of(1, 3), of(2)[0]).intervals()] == [True, True]

    def test_samples_of_trees_have_their_means_and_spreads(self) -> None:
        """Over 4,000 draws a mean is off by more than four standard errors once in 16,000 runs."""
        posterior = study_of(Trees(speeds=lambda place: 10.0**place, spread=0.2), {}).posterior
        drawn = posterior.sample(of(1, 2), count=4000, rng=np.random.default_rng(0))
        assert drawn.mean(axis=0) == pytest.approx(np.log([10.0, 100.0]), abs=4 * 0.2 / 4000**0.5)
        assert drawn.std(axis=0) == pytest.approx([0.2, 0.2], rel=0.05)
        assert abs(np.corrcoef(drawn.T)[0, 1]) < 0.07

    def test_samples_of_a_process_are_its_own(self) -> None:
        surrogate = Process(draws=lambda place, numbers: place + 0.01 * numbers)
        drawn = study_of(surrogate, {}).posterior.sample(of(1, 2), count=3, rng=np.random.default_rng(0))
        assert drawn == pytest.approx(np.array([[1.0, 2.0], [1.01, 2.01], [1.02, 2.02]]))

    def test_a_launch_under_way_is_not_tried_yet(self) -> None:
        posterior = study_of(Process(speeds=lambda place: place + 1.0), {1: 9.0}).posterior
        after = posterior.fantasize(of(1, 2))
        assert (posterior.n_tried, after.n_tried, after.n_out_of_memory) == (1, 1, 0)
        assert len(after.decided_rows()) == 2

    def test_optimism_is_that_of_the_surrogate(self) -> None:
        class Hopeful(Process):
            def optimistic(self) -> Process:
                return Process(speeds=lambda place: 7.0)

        posterior = study_of(Hopeful(speeds=lambda place: 1.0), {}).posterior
        assert posterior.optimistic().forecast(of(1)).throughput == pytest.approx([7.0])

    def test_each_member_of_the_ensemble_has_a_posterior(self) -> None:
        other = Trees(speeds=lambda place: 5.0)
        posterior = study_of(Trees(speeds=lambda place: 3.0, members=(other,)), {}).posterior
        found = posterior.ensemble(one=False)
        assert [each.forecast(of(1)).throughput[0] for each in found] == pytest.approx([3.0, 5.0])
        assert posterior.surrogate.log == ["all"]


def test_anchors_of_a_sample_are_distinct_and_near_the_fastest() -> None:
    """Variations of the measured ones reach all ten places; sixty random ones follow."""
    surrogate = Process(speeds=lambda place: place + 1.0)
    posterior = study_of(surrogate, dict.fromkeys(range(9), 100.0), n_choices=10).posterior
    sampled = posterior.sample_function(np.random.default_rng(0))
    (anchors,) = surrogate.log
    assert sorted(anchors[:-60]) == list(range(10))
    assert len(set(anchors[-60:])) > 5
    assert sampled(np.array([[3], [7]])).throughput == pytest.approx([996.0, 992.0])
