"""Which config an ordinary launch gets, by numbers chosen by hand, and what a study passes on."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

import numpy as np
import pytest

from tests.advisor.by_hand import WORKLOAD, Process, places_of, study_of
from torchx_cubicml.advisor import ProposalMethod, Study, best_known, suggest
from torchx_cubicml.advisor.posterior import Posterior
from torchx_cubicml.errors import RecordError, SpaceError
from torchx_cubicml.predictors import PREDICTORS, Prediction
from torchx_cubicml.records.trial import Trial
from torchx_cubicml.space import Parameter, SearchSpace
from torchx_cubicml.space.expression import parse_expression

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.predictors.features.history import TrainingTable

EIGHT = dict.fromkeys(range(8), 100.0)


def quiet(study: Study) -> Study:
    """Return the study of a site whose runs repeat exactly."""
    return replace(study, posterior=replace(study.posterior, noise=1e-6))


def known(
    speeds: Mapping[int, float], *, measured: Mapping[int, float] = EIGHT, spread: float = 0.001, **given: object
) -> int:
    """Return the place of an ordinary launch where the user's own is 0; other places run at 100."""
    surrogate = Process(speeds=lambda place: speeds.get(place, 100.0), spread=spread, **given)
    found = quiet(study_of(surrogate, measured)).best_known()
    assert found is not None
    return found.config["place"]


@dataclass(frozen=True, kw_only=True)
class UnequalProcess(Process):
    """Surrogate that is less sure of some places."""

    spreads: Mapping[int, float] = field(default_factory=dict)

    def ratios(self, rows: Sequence[Mapping[str, object]], over: Mapping[str, object]) -> Prediction:
        spread = np.array([self.spreads.get(row["place"], self.spread) for row in rows])
        return replace(super().ratios(rows, over), spread=spread)


class TestMeasuredConfigs:
    def test_the_fastest_is_launched(self) -> None:
        assert known({3: 120.0, 5: 130.0, 2: 110.0}) == 5

    @pytest.mark.parametrize(("gain", "place"), [(1.0099, 0), (1.01, 3), (1.0101, 3)])
    def test_a_gain_of_a_per_cent_is_enough(self, gain: float, place: int) -> None:
        surrogate = Process(speeds=lambda at: gain if at == 3 else 1.0, spread=1e-6, slowed=frozenset({0}))
        assert quiet(study_of(surrogate, EIGHT)).best_known().config == {"place": place}

    @pytest.mark.parametrize(("spread", "place"), [(0.0380, 3), (0.0382, 5)])
    def test_what_was_measured_again_is_launched_unless_another_is_surely_faster(
        self, spread: float, place: int
    ) -> None:
        """Of the normal distribution, 90 % are above 1.2816 standard deviations below its mean."""
        assert 0.0380 < math.log(1.26 / 1.2) / 1.2816 < 0.0382
        speeds = {3: 126.0, 5: 120.0, 6: 119.0}
        surrogate = Process(speeds=lambda at: speeds.get(at, 100.0), spread=spread)
        study = quiet(study_of(surrogate, EIGHT, again=(5, 6)))
        assert study.best_known().config == {"place": 3}
        found = study.best_known(confirmed=True)
        assert found.config == {"place": place}
        assert ("measured again" in found.reason) is (place == 5)

    def test_each_config_before_the_one_measured_again_may_be_surely_faster(self) -> None:
        """The first is the less sure one; the second is surely faster than what was measured again."""
        speeds = {3: 128.0, 4: 126.0, 5: 120.0}
        surrogate = UnequalProcess(speeds=lambda at: speeds.get(at, 100.0), spread=0.01, spreads={3: 0.08})
        found = quiet(study_of(surrogate, EIGHT, again=(5,))).best_known(confirmed=True)
        assert found.config == {"place": 4}
        assert found.reason.startswith("surely faster than the fastest config that was measured again")

    @pytest.mark.parametrize(("spread", "place"), [(0.0886, 3), (0.0889, 0)])
    def test_a_gain_must_be_surely_more_than_none(self, spread: float, place: int) -> None:
        """Of the normal distribution, 98 % are above 2.0537 standard deviations below its mean."""
        assert 0.0886 < math.log(1.2) / 2.0537 < 0.0889
        assert known({3: 120.0}, spread=spread, slowed=frozenset({0})) == place

    def test_a_sure_gain_below_a_per_cent_is_left(self) -> None:
        assert known({3: 100.5}, spread=1e-6) == 0

    def test_the_reason_names_the_users_config(self) -> None:
        found = study_of(Process(speeds=lambda place: 100.0), EIGHT).best_known()
        assert found.reason == "your config: no known config is reliably at least 1 % faster"


class TestUntriedConfigs:
    @pytest.mark.parametrize(("n_tried", "place"), [(7, 0), (8, 90), (9, 90)])
    def test_eight_configs_are_tried_before(self, n_tried: int, place: int) -> None:
        assert known({90: 200.0}, measured=dict.fromkeys(range(n_tried), 100.0)) == place

    @pytest.mark.parametrize(("fit", "place"), [(0.994, 0), (0.995, 90), (1.0, 90)])
    def test_an_untried_config_must_surely_fit(self, fit: float, place: int) -> None:
        assert known({90: 200.0}, fits=lambda at: fit if at == 90 else 1.0) == place

    @pytest.mark.parametrize(("spread", "place"), [(0.0781, 90), (0.0784, 0)])
    def test_its_lower_bound_is_above_the_best(self, spread: float, place: int) -> None:
        """2.33 standard deviations below its mean."""
        assert 0.0781 < math.log(1.2) / 2.33 < 0.0784
        assert known({90: 120.0}, spread=spread) == place

    def test_a_tie_stays_with_what_was_measured(self) -> None:
        measured = {**EIGHT, 0: 50.0}
        assert known({0: 50.0, 3: 120.0, 90: 120.0}, measured=measured, spread=0.0) == 3

    def test_a_measured_config_never_counts_as_untried(self) -> None:
        assert known({3: 130.0, 90: 120.0}) == 3

    def test_it_comes_before_a_measured_gain(self) -> None:
        assert known({3: 130.0, 90: 150.0}) == 90

    def test_a_space_that_was_all_measured_has_none(self) -> None:
        study = study_of(Process(speeds=lambda place: 100.0 + place, spread=0.001), EIGHT, n_choices=8)
        assert quiet(study).best_known().config == {"place": 7}

    @pytest.mark.parametrize(("n_choices", "listed"), [(2000, True), (2001, False)])
    def test_up_to_two_thousand_configs_are_listed(
        self, n_choices: int, listed: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[list[int]] = []
        forecast_at = Posterior.forecast_at

        def counted(posterior: Posterior, vectors: NDArray[np.intp]) -> Prediction:
            seen.append(vectors[:, 0].tolist())
            return forecast_at(posterior, vectors)

        monkeypatch.setattr(Posterior, "forecast_at", counted)
        measured = {place: 100.0 + place for place in range(30)}
        study_of(Process(speeds=lambda place: 100.0), measured, n_choices=n_choices).best_known()
        assert (sorted(seen[0]) == list(range(n_choices))) is listed
        if not listed:
            assert seen[0] == list(range(29, 9, -1))  # the search starts from the twenty fastest


class TestWhatIsPassedOn:
    @pytest.mark.parametrize("seed", [None, 0, 3])
    @pytest.mark.parametrize("ask", [suggest, best_known, Study.of])
    def test_the_seed_is_zero_by_default(
        self, ask: Callable[..., object], seed: int | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        states = []

        @dataclass
        class Watching:
            log: list[object] = field(default_factory=list)

            def fit(self, history: TrainingTable, *, rng: np.random.Generator) -> Self:
                del history
                states.append(rng.bit_generator.state)
                return self

            def predict(self, features: NDArray[np.float64]) -> Prediction:
                return Prediction.unknown(len(features))

        monkeypatch.setitem(PREDICTORS, "watching", Watching)
        trial = Trial.completed(workload=WORKLOAD, config={"place": 0}, tokens_per_second=100.0)
        space = SearchSpace(parameters=(Parameter(name="place", choices=(0, 1)),))
        given = {} if seed is None else {"seed": seed}
        ask(space, workload=WORKLOAD, current={"place": 0}, trials=[trial], predictor="watching", **given)
        assert states[0] == np.random.default_rng(seed or 0).bit_generator.state

    def test_without_a_measurement_nothing_is_fitted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(PREDICTORS, "refusing", lambda: pytest.fail("there is nothing to fit"))
        space = SearchSpace(parameters=(Parameter(name="place", choices=(0, 1)),))
        trials = [
            Trial.infeasible(workload=WORKLOAD, config={"place": 1}),
            Trial.completed(workload={**WORKLOAD, "program": "other.py"}, config={"place": 0}, tokens_per_second=100.0),
        ]
        given = {"workload": WORKLOAD, "current": {"place": 0}, "predictor": "refusing"}
        assert best_known(space, **given, trials=trials) is None

    @pytest.mark.parametrize("ask", [suggest, best_known, Study.of])
    @pytest.mark.parametrize("where", ["workload", "current"])
    def test_an_illegal_value_is_named_with_its_place(self, ask: Callable[..., object], where: str) -> None:
        space = SearchSpace(parameters=(Parameter(name="place", choices=(0, 1)),))
        given = {"workload": WORKLOAD, "current": {"place": 0}}
        given[where] = {**given[where], "place": {}}
        with pytest.raises(RecordError, match=rf"^{where}\.place must be"):
            ask(space, **given, trials=[])

    def test_pending_configs_are_under_way(self) -> None:
        space = SearchSpace(parameters=(Parameter(name="place", choices=(0, 1, 2)),))
        given = {"workload": WORKLOAD, "current": {"place": 0}, "trials": []}
        found = suggest(space, **given, pending=[{"place": 0}, {"place": 2}], count=3)
        assert [each.config for each in found] == [{"place": 1}]

    def test_an_illegal_pending_value_is_named(self) -> None:
        space = SearchSpace(parameters=(Parameter(name="place", choices=(0, 1)),))
        with pytest.raises(RecordError, match=r"^pending\[1\]\.place must be"):
            suggest(space, workload=WORKLOAD, current={}, trials=[], pending=[{"place": 1}, {"place": {}}])

    def test_one_config_is_suggested_by_default(self) -> None:
        space = SearchSpace(parameters=(Parameter(name="place", choices=tuple(range(9))),))
        given = {"workload": WORKLOAD, "current": {"place": 0}, "trials": []}
        assert len(suggest(space, **given)) == len(Study.of(space, **given).suggest()) == 1
        assert len(suggest(space, **given, count=7)) == 7  # three are designed, the others searched

    def test_the_method_is_checked_against_the_space(self) -> None:
        space = SearchSpace(parameters=(Parameter(name="place", choices=(0, 1), per_layer=24),))
        with pytest.raises(SpaceError, match="limited to 1000000"):
            suggest(space, workload=WORKLOAD, current={}, trials=[], method=ProposalMethod(searcher="exhaustive"))

    def test_a_search_fills_up_the_design(self) -> None:
        found = study_of(Process(speeds=lambda place: place + 1.0), {}).suggest(count=5)
        assert [bool(each.reason.startswith(("baseline", "initial design"))) for each in found] == [True] * 3 + [
            False
        ] * 2
        assert places_of([each.config for each in found])[:3] == [0, 50, 99]

    def test_questions_leave_the_random_state(self) -> None:
        study = study_of(Process(speeds=lambda place: 100.0), EIGHT, n_choices=3000)
        state = study.rng.bit_generator.state
        method = ProposalMethod(searcher="random", acquisition="thompson")
        assert study.suggest(count=3, method=method) == study.suggest(count=3, method=method)
        assert study.best_known() == study.best_known()
        assert study.rng.bit_generator.state == state


class TestUserConfig:
    SPACE = SearchSpace(
        parameters=(
            Parameter(name="size", choices=(1, 2, 4)),
            Parameter(name="rounds", derive=parse_expression("8 / size", where="derive")),
            Parameter(name="fused", choices=(False, True)),
        ),
        constraints=(parse_expression("size < 4 or fused", where="constraints"),),
    )

    @pytest.mark.parametrize(
        ("given", "completed"),
        [
            ({"size": 2, "fused": False}, {"size": 2, "rounds": 4, "fused": False}),
            ({"size": 2, "rounds": 4, "fused": False}, {"size": 2, "rounds": 4, "fused": False}),
            ({"size": 4, "fused": False}, {"size": 4, "fused": False}),  # illegal
            ({"size": 3, "fused": False}, {"size": 3, "fused": False}),
            ({"size": 2}, {"size": 2}),  # not known whole
            ({"rounds": 8, "fused": True}, {"rounds": 8, "fused": True}),
            ({"size": 2, "fused": False, "other": 1}, {"size": 2, "fused": False, "other": 1}),
        ],
    )
    def test_derived_values_are_filled_in(self, given: dict[str, object], completed: dict[str, object]) -> None:
        study = Study.of(self.SPACE, workload=WORKLOAD, current=given, trials=[])
        assert study.current == completed

    def test_a_whole_config_keeps_its_own_literals(self) -> None:
        study = Study.of(self.SPACE, workload=WORKLOAD, current={"size": 2.0, "rounds": 4, "fused": False}, trials=[])
        assert isinstance(study.current["size"], float)
