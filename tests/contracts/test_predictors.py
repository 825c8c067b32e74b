"""What holds of every predictor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from torchx_cubicml.predictors import PREDICTORS, CrossWorkloadFeasibility
from torchx_cubicml.predictors.evaluation import evaluate
from torchx_cubicml.predictors.features.device_specs import find_hardware, hardware_names
from torchx_cubicml.predictors.features.history import TrainingTable, training_row
from torchx_cubicml.predictors.gaussian_process.process import GaussianProcess
from torchx_cubicml.predictors.memory.order import MemoryOrder
from torchx_cubicml.predictors.memory.per_workload import WorkloadFeasibility
from torchx_cubicml.predictors.roofline.constants import PRIORS
from torchx_cubicml.records.measurement import Measurement
from torchx_cubicml.records.trial import State, Trial

if TYPE_CHECKING:
    from collections.abc import Callable

    from torchx_cubicml.predictors import Prediction, Predictor

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


def history_of(trials: list[Trial]) -> TrainingTable:
    return TrainingTable.from_trials(trials, objective="tokens_per_second")


def fitted(make: Callable[[], Predictor], history: TrainingTable, seed: int = 0) -> Predictor:
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
        backwards = TrainingTable(
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


def trainings(count: int, *, seed: int = 0) -> list[Trial]:
    """Language models with facts that the formulas need, on two devices; large batches on few devices do not fit."""
    rng = np.random.default_rng(seed)
    trials = []
    for index in range(count):
        batch, world_size, layers = 2 ** int(rng.integers(6)), 2 ** int(rng.integers(3, 7)), int(rng.integers(12, 49))
        sharding, width = STRATEGIES[int(rng.integers(3))], int(rng.choice([1024, 2048, 4096]))
        speed = 3e4 * world_size**0.9 * batch**0.3 * (24 / layers) * (2048 / width) ** 1.5
        speed *= {"FULL_SHARD": 1.0, "SHARD_GRAD_OP": 1.1, "NO_SHARD": 1.15}[sharding] * np.exp(rng.normal(0.0, 0.05))
        peak = batch * layers * width / 1e5 * (0.7 + 0.3 * (sharding == "NO_SHARD")) + 4.0
        state = State.OUT_OF_MEMORY if peak > 16.0 else State.UNKNOWN if index % 11 == 5 else State.COMPLETED
        error, of_peak = float(rng.choice([0.0, 0.01, 0.1])), peak * float(np.exp(rng.normal(0.0, 0.02)))
        measurement = Measurement(
            tokens_per_second=float(speed), relative_error=error or None, peak_memory_gib=of_peak if index % 3 else None
        )
        trials.append(
            Trial(
                trial_id=f"t{index:03d}",
                workload={
                    "program": ("a.py", "b.py", "c.py")[index % 3],
                    "n_layers": layers,
                    "d_model": width,
                    "seq_len": 2048,
                    "world_size": world_size,
                    "device": ("NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3")[index % 5 == 0],
                    **({"vocab_size": 50_000} if index % 4 else {}),
                },
                config={
                    "micro_batch_size": batch,
                    "gradient_accumulation_steps": 2 ** int(rng.integers(3)),
                    "tp_degree": 2 ** int(rng.integers(3)),
                    "sharding_strategy": sharding,
                    "activation_checkpointing": ("full", "none")[int(rng.integers(2))],
                },
                state=state,
                measurement=measurement if state is State.COMPLETED else None,
            )
        )
    return trials


def recommenders(count: int, *, seed: int = 0) -> list[Trial]:
    """Models of layers of several sizes, each with a sharding strategy of its own, on one machine."""
    rng = np.random.default_rng(seed)
    sizes = (40_000_000, 20_000_000, 5_000_000, 90_000_000)
    trials = []
    for index in range(count):
        layers, batch = rng.integers(0, 3, len(sizes)).tolist(), 512 * 2 ** int(rng.integers(6))
        gathered = sum(size * (3, 2, 1)[layer] for size, layer in zip(sizes, layers, strict=True))
        seconds = 0.01 + batch * 2e-5 + gathered / 1e10
        peak = sum(size * (4, 9, 16)[layer] for size, layer in zip(sizes, layers, strict=True)) / 2**30 + batch / 2e4
        fits = peak < 2.6
        trials.append(
            Trial(
                trial_id=f"t{index:03d}",
                workload={
                    "program": "rank.py",
                    "world_size": 8,
                    "layer_n_params": sizes,
                    "n_embedding_tables": 50,
                    "embedding_dim": 64,
                    "embedding_pooling": 10.0,
                    "n_embedding_rows": 10_000_000,
                    "device": "NVIDIA A100-SXM4-80GB",
                    "device_memory_gib": 2.6,
                },
                config={
                    "micro_batch_size": batch,
                    "sharding_strategy": tuple(STRATEGIES[layer] for layer in layers),
                    "prefetch": int(rng.integers(1, 5)),
                    "backend": ("x", "y")[int(rng.integers(2))],
                },
                state=State.COMPLETED if fits else State.OUT_OF_MEMORY,
                measurement=Measurement(
                    tokens_per_second=8 * batch / seconds * float(np.exp(rng.normal(0.0, 0.02))),
                    relative_error=0.01 if index % 2 else None,
                    peak_memory_gib=peak if index % 3 else None,
                )
                if fits
                else None,
            )
        )
    return trials


KNOWN = {"trainings": trainings(50), "recommenders": recommenders(40)}
ASKED = {"trainings": trainings(5, seed=9), "recommenders": recommenders(4, seed=9)}
STRANGE: dict[str, list[dict[str, object]]] = {
    "trainings": [
        {"n_layers": 200, "d_model": 16_384, "world_size": 4096, "micro_batch_size": 1, "seq_len": 2048},
        {"n_layers": 24, "device": "a new device", "sharding_strategy": "HYBRID_SHARD"},
    ],
    "recommenders": [{"world_size": 64, "micro_batch_size": 512, "sharding_strategy": "FULL_SHARD"}],
}


def asked_of(kind: str) -> list[dict[str, object]]:
    return [*map(training_row, ASKED[kind]), *STRANGE[kind]]


def numbers_of(prediction: Prediction) -> list[list[float]]:
    return [prediction.throughput.tolist(), prediction.spread.tolist()]


def of_predictor(make: Callable[[], Predictor], kind: str) -> object:
    history = history_of(KNOWN[kind])
    return numbers_of(fitted(make, history).predict(history.columns.encode(asked_of(kind))))


def of_gaussian_process(kind: str) -> object:
    history = history_of(KNOWN[kind])
    tuned = {"micro_batch_size": (1, 2, 4, 8, 16, 32), "sharding_strategy": STRATEGIES}
    near = np.linspace(0.0, 1.0, len(history.rows))[:, None]
    process = GaussianProcess(
        tuned=tuned, noise=0.03, optimistic=True, memory_pressure=lambda rows: np.resize(near, (len(rows), 1))
    ).fit(history, rng=np.random.default_rng(3))
    features = history.columns.encode(asked_of(kind))
    mean, covariance = process.joint(features)
    return {
        "latent": numbers_of(process.latent(features)),
        "joint": [mean.tolist(), covariance.ravel().tolist()],
        "noise": process.noise_,
        "fantasy": numbers_of(process.fantasize(features[:2]).latent(features)),
        "sample": process.sample(features, count=2, rng=np.random.default_rng(1)).ravel().tolist(),
        "function": numbers_of(process.sample_function(features[:2], rng=np.random.default_rng(2)).latent(features)),
        "mixture": [
            [probability, *means.tolist(), *np.diag(each).tolist()]
            for probability, means, each in process.posterior_mixture(features)
        ],
    }


def of_feasibility(kind: str) -> object:
    history, rows = history_of(KNOWN[kind]), asked_of(kind)
    features = history.columns.encode(rows)
    found: dict[str, object] = {}
    for compare in ((), ("program", "sharding_strategy", "world_size", "n_layers")):
        order = MemoryOrder.of_names(compare)
        across = CrossWorkloadFeasibility(order=order).fit(history, rng=np.random.default_rng(4))
        found[f"across {len(compare)}"] = across.probability(features, rows).tolist()
        within = WorkloadFeasibility(order=order, tuned={"sharding_strategy": STRATEGIES}).fit(history)
        found[f"within {len(compare)}"] = {
            "probability": within.probability(features, rows).tolist(),
            "pressure": within.memory_pressure(features).ravel().tolist(),
            "steepness": within.steepness_,
            "feared": within.fantasize_failures(features[:1], rows[:1]).probability(features, rows).tolist(),
        }
    return found


def of_card(split: str) -> object:
    trials = [
        replace(each, started_at=f"2026-01-01T{n % 24:02}:00:00Z") for n, each in enumerate(trainings(90, seed=5))
    ]
    return evaluate(trials, split=split, predictor="roofline", large=3, seed=6).to_json()


PINNED: dict[str, Callable[[], object]] = {
    **{
        f"{name} {kind}": partial(of_predictor, make, kind)
        for name, make in PREDICTORS.items()
        for kind in KNOWN
        if kind == "trainings" or name in {"ranking_mlp", "boosting"}
    },
    **{f"process {kind}": partial(of_gaussian_process, kind) for kind in KNOWN},
    **{f"feasibility {kind}": partial(of_feasibility, kind) for kind in KNOWN},
    **{f"card {split}": partial(of_card, split) for split in ("time", "scale")},
    "devices": lambda: {name: asdict(find_hardware(name)) for name in hardware_names()},
    "constants": lambda: {name: list(prior[:2]) for name, prior in PRIORS.items()},
    "card random": lambda: evaluate(made_up(80), predictor="boosting", seed=6).to_json(),
}


# Rounding differs between processors, and a tree may then split elsewhere: five times what was seen on five kinds.
ACROSS_MACHINES = defaultdict(lambda: 5e-3, {"greybox trainings": 0.15, "roofline trainings": 0.02})


def flat(found: object) -> list[object]:
    """Return the leaves of nested lists and mappings, in order."""
    if isinstance(found, dict):
        return [leaf for name in sorted(found) for leaf in flat(found[name])]
    return [leaf for each in found for leaf in flat(each)] if isinstance(found, list) else [found]


def rounded(found: object) -> object:
    if isinstance(found, dict):
        return {name: rounded(each) for name, each in found.items()}
    if isinstance(found, list):
        return [rounded(each) for each in found]
    return float(f"{found:.6g}") if isinstance(found, float) else found


@pytest.mark.parametrize("name", PINNED)
def test_numbers_stay_as_they_were_accepted(name: str) -> None:
    """It pins the numbers on purpose: a changed prior or seed is a change of behaviour that someone must accept.

    ``RENEW_GOLDEN=1`` writes them anew.
    """
    file = Path(__file__).parents[1] / "data" / "predictions.json"
    found, known = PINNED[name](), json.loads(file.read_text()) if file.exists() else {}
    if os.environ.get("RENEW_GOLDEN"):
        lines = ",\n".join(
            f"{json.dumps(each)}: {json.dumps(value)}"
            for each, value in sorted({**known, name: rounded(found)}.items())
        )
        file.write_text(f"{{\n{lines}\n}}\n")
        return
    for value, accepted in zip(flat(found), flat(known[name]), strict=True):
        is_number = isinstance(accepted, int | float)
        assert value == (pytest.approx(accepted, rel=ACROSS_MACHINES[name], abs=1e-7) if is_number else accepted)
