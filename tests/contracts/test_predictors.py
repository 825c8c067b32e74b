"""What holds of every predictor."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

from torchx_cubicml.predictors import PREDICTORS
from torchx_cubicml.predictors.features.history import History
from torchx_cubicml.records.trial import Trial

if TYPE_CHECKING:
    from collections.abc import Callable

    from torchx_cubicml.predictors import Predictor

STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD")


def measured(batch: int, layers: tuple[int, ...], *, compile_: bool = False, program: str = "a.py") -> Trial:
    speed = 1000.0 * batch**0.5 * (1.0 + 0.05 * sum(layers)) * (1.2 if compile_ else 1.0)
    return Trial.completed(
        workload={"program": program, "world_size": 2},
        config={
            "micro_batch_size": batch,
            "sharding_strategy": tuple(STRATEGIES[layer] for layer in layers),
            "compile": compile_,
        },
        tokens_per_second=speed,
    )


def made_up(count: int, seed: int = 0) -> list[Trial]:
    rng = np.random.default_rng(seed)
    return [
        measured(
            2 ** int(rng.integers(7)),
            tuple(rng.integers(0, 3, 4).tolist()),
            compile_=bool(rng.integers(2)),
            program=("a.py", "b.py")[int(rng.integers(2))],
        )
        for _ in range(count)
    ]


def history_of(trials: list[Trial]) -> History:
    return History.from_trials(trials, objective="tokens_per_second")


def fitted(make: Callable[[], Predictor], history: History, seed: int = 0) -> Predictor:
    return make().fit(history, rng=np.random.default_rng(seed))


@pytest.mark.parametrize("make", PREDICTORS.values(), ids=PREDICTORS.keys())
class TestEveryPredictor:
    def test_fit_returns_the_predictor(self, make: Callable[[], Predictor]) -> None:
        predictor = make()
        assert predictor.fit(history_of(made_up(5)), rng=np.random.default_rng(0)) is predictor

    @pytest.mark.parametrize("count", [1, 2, 3, 8, 40])
    def test_predictions_are_finite_and_positive(self, make: Callable[[], Predictor], count: int) -> None:
        history = history_of(made_up(count))
        unseen = history.columns.encode([{"micro_batch_size": 4096, "sharding_strategy": "HYBRID_SHARD"}, {}])
        prediction = fitted(make, history).predict(np.vstack([history.features, unseen]))
        for values in (prediction.throughput, prediction.spread):
            assert values.shape == (len(history.rows) + 2,)
            assert np.isfinite(values).all()
            assert (values > 0).all()

    def test_one_trial_is_enough(self, make: Callable[[], Predictor]) -> None:
        history = history_of([measured(4, (0, 1, 2, 0))])
        prediction = fitted(make, history).predict(history.features)
        assert prediction.throughput == pytest.approx(history.throughput)

    def test_no_trial_predicts_nothing(self, make: Callable[[], Predictor]) -> None:
        history = history_of([])
        prediction = fitted(make, history).predict(np.empty((2, 0)))
        assert np.isnan(prediction.throughput).all()
        assert np.isnan(prediction.spread).all()

    def test_only_failures_predict_nothing(self, make: Callable[[], Predictor]) -> None:
        trial = Trial.infeasible(workload={"program": "a.py"}, config={"micro_batch_size": 8})
        history = history_of([trial])
        assert np.isnan(fitted(make, history).predict(history.features).throughput).all()

    def test_the_order_of_trials_is_free(self, make: Callable[[], Predictor]) -> None:
        trials = made_up(30)
        asked = history_of(trials).rows
        answers = []
        for order in (trials, trials[::-1]):
            history = history_of(order)
            answers.append(fitted(make, history).predict(history.columns.encode(asked)))
        assert answers[0].throughput.tolist() == answers[1].throughput.tolist()
        assert answers[0].spread.tolist() == answers[1].spread.tolist()

    def test_the_order_of_rows_is_free(self, make: Callable[[], Predictor]) -> None:
        history = history_of(made_up(30))
        backwards = History(
            columns=history.columns,
            rows=history.rows[::-1],
            features=history.features[::-1],
            throughput=history.throughput[::-1],
            feasible=history.feasible[::-1],
            trial_ids=history.trial_ids[::-1],
        )
        answers = [fitted(make, each).predict(history.features).throughput.tolist() for each in (history, backwards)]
        assert answers[0] == answers[1]

    def test_same_seed_same_prediction(self, make: Callable[[], Predictor]) -> None:
        history = history_of(made_up(30))
        answers = [fitted(make, history, seed=7).predict(history.features).throughput.tolist() for _ in range(2)]
        assert answers[0] == answers[1]

    def test_inputs_are_left_untouched(self, make: Callable[[], Predictor]) -> None:
        history = history_of(made_up(20))
        before = history.features.copy(), history.throughput.copy()
        asked = history.features.copy()
        fitted(make, history).predict(asked)
        np.testing.assert_array_equal(history.features, before[0])
        np.testing.assert_array_equal(history.throughput, before[1])
        np.testing.assert_array_equal(asked, before[0])

    def test_a_second_fit_forgets_the_first(self, make: Callable[[], Predictor]) -> None:
        one, other = history_of(made_up(20, seed=1)), history_of(made_up(12, seed=2))
        again = fitted(make, one).fit(other, rng=np.random.default_rng(0)).predict(other.features)
        assert again.throughput.tolist() == fitted(make, other).predict(other.features).throughput.tolist()

    def test_it_learns_what_is_fast(self, make: Callable[[], Predictor]) -> None:
        history, outside = history_of(made_up(100, seed=1)), made_up(100, seed=2)
        asked = history_of(outside)
        predicted = fitted(make, history).predict(history.columns.encode(asked.rows)).throughput
        assert np.corrcoef(np.log(predicted), np.log(asked.throughput))[0, 1] > 0.95


def test_importing_the_predictors_imports_no_scikit_learn() -> None:
    code = "import sys, torchx_cubicml.predictors; print(sorted({'sklearn', 'scipy', 'torch'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
