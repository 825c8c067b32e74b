from __future__ import annotations

import json
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from torchx_cubicml.errors import RecordError
from torchx_cubicml.predictors import DEFAULT_PREDICTOR, PREDICTORS, selection
from torchx_cubicml.predictors.selection import PredictorChoice, choose_predictor, load_choice, save_choice
from torchx_cubicml.records.trial import Trial
from torchx_cubicml.store import TrialStore
from torchx_cubicml.store.predictor_choice import append_choice, latest_choice

if TYPE_CHECKING:
    from pathlib import Path


def trials(count: int) -> list[Trial]:
    rng = np.random.default_rng(0)
    return [
        Trial.completed(
            workload={"program": "a.py"},
            config={"micro_batch_size": (batch := 2 ** int(rng.integers(8))), "compile": (fused := bool(index % 2))},
            tokens_per_second=100.0 * batch**0.5 * (1.3 if fused else 1.0) * float(np.exp(rng.normal(0, 0.02))),
        )
        for index in range(count)
    ]


@pytest.fixture
def only_two(monkeypatch: pytest.MonkeyPatch) -> None:
    two = {name: PREDICTORS[name] for name in (DEFAULT_PREDICTOR, "boosting")}
    monkeypatch.setattr(selection, "PREDICTORS", two)


@pytest.mark.usefixtures("only_two")
def test_equals_leave_the_default() -> None:
    choice = choose_predictor(trials(40))
    assert choice is not None
    assert choice.name == DEFAULT_PREDICTOR
    assert set(choice.taus) == {DEFAULT_PREDICTOR, "boosting"}
    assert choice.n_measured == 40
    assert "greybox" in str(choice)


@pytest.mark.usefixtures("only_two")
@pytest.mark.parametrize(("gain", "name"), [(0.01, DEFAULT_PREDICTOR), (0.1, "boosting")], ids=["noise", "clear"])
def test_another_must_be_clearly_better(monkeypatch: pytest.MonkeyPatch, gain: float, name: str) -> None:
    ranks = {DEFAULT_PREDICTOR: 0.7, "boosting": 0.7 + gain}
    monkeypatch.setattr(selection, "_tau", lambda _, name, **__: ranks[name])
    choice = choose_predictor(trials(40))
    assert choice is not None
    assert choice.name == name


@pytest.mark.parametrize(
    ("in_use", "name", "sentence"),
    [
        ("greybox", "greybox", "launches with this store use greybox; no other predictor is clearly better ("),
        ("greybox", "boosting", "boosting would serve launches with this store better than greybox ("),
        ("roofline", "boosting", "boosting would serve launches with this store better than roofline ("),
        ("boosting", "greybox", "launches with this store use boosting, which is not clearly better than the default"),
    ],
)
def test_advice_compares_with_the_predictor_in_use(in_use: str, name: str, sentence: str) -> None:
    choice = PredictorChoice(name=name, taus={"boosting": 0.7, "greybox": 0.69}, n_measured=30)
    advice = choice.advice(in_use=in_use, command="torchx cubicml evaluate --choose")
    assert advice.startswith(sentence)
    assert advice.endswith(f"`torchx cubicml evaluate --choose` sets {name}") is (in_use != name)
    assert "boosting 0.70, greybox 0.69" in advice


def test_too_few_trials_choose_nothing() -> None:
    assert choose_predictor(trials(19)) is None


def test_the_latest_choice_is_read_back(tmp_path: Path) -> None:
    url = str(tmp_path)
    TrialStore(url).add(trials(1)[0])
    assert load_choice(url) == DEFAULT_PREDICTOR
    for name in ("roofline", "boosting"):
        save_choice(url, PredictorChoice(name=name, taus={name: 0.5}, n_measured=30))
    assert load_choice(url) == "boosting"
    assert len(list(TrialStore(url))) == 1


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"predictor": 3}',
        '{"predictor": "os.system"}',
        '{"predictor": "oracle"}',
        '{"predictor": ["boosting"]}',
        "[" * 10_000,
    ],
    ids=["empty", "list", "number", "dotted", "unknown", "tuple", "deep"],
)
def test_an_unknown_name_means_the_default(tmp_path: Path, content: str) -> None:
    append_choice(str(tmp_path), "boosting", why={})
    (kept,) = (tmp_path / "choices").rglob("*.json")
    assert json.loads(kept.read_text())["predictor"] == "boosting"
    kept.write_text(content)
    assert load_choice(str(tmp_path)) == DEFAULT_PREDICTOR
    assert latest_choice(str(tmp_path)) in {"", "oracle"}


@pytest.mark.parametrize(
    ("taus", "name"),
    [
        ({"greybox": 0.5, "boosting": 0.52, "roofline": 0.4}, "greybox"),
        ({"greybox": 0.5, "boosting": 0.53, "roofline": 0.6}, "roofline"),
        ({"greybox": 0.5, "boosting": math.nan, "roofline": -0.2}, "greybox"),
        ({"greybox": -0.5, "boosting": -0.1, "roofline": -0.3}, "boosting"),
        ({"greybox": math.nan, "boosting": 0.9, "roofline": 0.9}, None),
    ],
)
def test_the_best_rank_is_chosen(monkeypatch: pytest.MonkeyPatch, taus: dict[str, float], name: str | None) -> None:
    monkeypatch.setattr(selection, "PREDICTORS", {each: PREDICTORS[each] for each in taus})
    asked: list[tuple[str, int]] = []

    def graded(_: object, *, predictor: str, objective: str, seed: int) -> SimpleNamespace:
        assert objective == "tokens_per_second"
        asked.append((predictor, seed))
        if seed == 8:
            raise RecordError("nothing to predict")
        return SimpleNamespace(tau=math.nan if seed == 9 else taus[predictor])

    monkeypatch.setattr(selection, "evaluate", graded)
    choice = choose_predictor(trials(20), seed=7)
    assert asked == [(each, seed) for each in taus for seed in (7, 8, 9)]
    assert (choice.name if choice is not None else None) == name
    if choice is not None:
        assert choice.taus == {each: tau for each, tau in taus.items() if not math.isnan(tau)}
        assert choice.n_measured == 20


def test_a_rank_is_the_mean_over_three_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "evaluate", lambda *_, seed, **__: SimpleNamespace(tau=(0.1, 0.4, 0.1)[seed]))
    choice = choose_predictor(trials(20))
    assert choice is not None
    assert choice.taus == pytest.approx(dict.fromkeys(PREDICTORS, 0.2))


def test_only_what_was_measured_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "evaluate", lambda *_, **__: SimpleNamespace(tau=0.5))
    lost = [replace(each, measurement=None) for each in trials(30)]
    assert choose_predictor([*trials(19), *lost]) is None
    assert choose_predictor(trials(25), objective="samples_per_second") is None
    choice = choose_predictor([*trials(20), *lost])
    assert choice is not None
    assert choice.n_measured == 20


def test_a_choice_is_told_with_all_ranks() -> None:
    choice = PredictorChoice(name="boosting", taus={"greybox": 0.5, "boosting": 0.714, "roofline": 0.6}, n_measured=30)
    assert str(choice) == (
        "predictor for launches with this store: boosting (Kendall's tau on held-out fifths of 30 measured trials: "
        "boosting 0.71, roofline 0.60, greybox 0.50)"
    )
