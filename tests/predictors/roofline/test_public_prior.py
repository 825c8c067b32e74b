from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from torchx_cubicml.errors import RecordError
from torchx_cubicml.predictors.base import Prediction
from torchx_cubicml.predictors.features.history import TrainingTable
from torchx_cubicml.predictors.roofline import Roofline
from torchx_cubicml.predictors.roofline.constants import HAND_SET, NAMES
from torchx_cubicml.predictors.roofline.facts import Facts
from torchx_cubicml.predictors.roofline.public_prior import (
    RANGE_COLUMNS,
    SHIPPED,
    PublicPrior,
    prior_of,
    public_prior,
)
from torchx_cubicml.records.trial import Trial

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks"))

from lib.left_out import WAITS, LeftOut
from lib.priors import FOLDER, VARIABLE, leave_out, prior_without, use_hand_set, use_prior_without
from lib.public_sources import Source
from lib.random_effects import learned_prior
from lib.unused_jobs import unused_source

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Value

ROW: dict[str, Value] = {
    "n_layers": 32,
    "d_model": 4096,
    "n_heads": 32,
    "vocab_size": 32_000,
    "seq_len": 4096,
    "micro_batch_size": 2,
    "gradient_accumulation_steps": 1,
    "world_size": 8,
    "sharding_strategy": "FULL_SHARD",
    "attention_kernel": "flash",
    "precision": "bf16",
    "device": "NVIDIA H100 80GB HBM3",
}


@pytest.fixture(autouse=True)
def shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each test begin with the shipped file, and end so."""
    monkeypatch.setenv(VARIABLE, str(SHIPPED))


def test_the_shipped_file_is_small_and_holds_constants_only() -> None:
    table = json.loads(SHIPPED.read_text())
    assert SHIPPED.stat().st_size < 4096
    assert table.keys() == {
        *("format", "sources", "devices", "ranges", "constants", "memory_sources", "numbers", "held"),
    }
    assert tuple(table["constants"]) == NAMES
    assert tuple(table["ranges"]) == RANGE_COLUMNS
    assert all(len(pair) == 2 and min(pair) > 0.0 for pair in table["constants"].values())
    assert len(table["sources"]) == 7


def test_intervals_held_on_each_source_that_was_left_out() -> None:
    prior = PublicPrior.read(SHIPPED)
    assert {*prior.held} == {*prior.sources} - {"DLPerf"}  # its devices are those of no other source
    assert min(prior.held.values()) >= 0.7


def test_intervals_hold_on_a_source_that_nothing_was_learned_from() -> None:
    source = unused_source()
    predicted = PublicPrior.read(SHIPPED).tokens_per_second(source.rows)
    inside = np.isfinite(predicted.logarithm)
    assert inside.sum() >= 90
    measured = np.log(source.layout.tokens_per_step) - source.log_seconds
    held = np.abs(measured - predicted.logarithm)[inside] <= 1.2816 * predicted.spread[inside]
    assert held.mean() >= 0.8


def test_short_micro_batches_across_nodes_are_told_less_surely() -> None:
    prior = PublicPrior.read(SHIPPED)
    small: dict[str, Value] = {**ROW, "n_layers": 16, "d_model": 1024, "n_heads": 8, "micro_batch_size": 1}
    rows = [{**row, "world_size": world} for row in (ROW, small) for world in (8, 16)]
    within, across, small_within, small_across = prior.tokens_per_second(rows).spread.tolist()
    assert across < 1.5 * within
    assert not small_across <= 2.0 * small_within  # NaN where only the order of magnitude is known
    shortest = {**small, "seq_len": 512, "n_layers": 12, "world_size": 16, "sharding_strategy": "NO_SHARD"}
    assert prior.uncovered(shortest).startswith("micro batches of 0.0")
    assert np.isnan(prior.tokens_per_second([shortest]).spread[0])
    assert np.isfinite(prior.peak_gib([shortest]).logarithm[0])


def test_tensor_parallelism_across_nodes_has_no_throughput() -> None:
    prior = PublicPrior.read(SHIPPED)
    row = {**ROW, "world_size": 16, "tp_degree": 16, "sharding_strategy": "NO_SHARD"}
    assert prior.uncovered(row) == "tensor parallelism across nodes"
    assert np.isnan(prior.tokens_per_second([row]).logarithm[0])
    assert np.isfinite(prior.peak_gib([row]).logarithm[0])


def test_no_constant_is_surer_than_a_mean_of_its_sources_may_be() -> None:
    prior = PublicPrior.read(SHIPPED)
    assert (prior.constants.width > 0.5 * HAND_SET.width).all()


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({}, ""),
        ({"device": "cpu"}, "the device cpu"),
        ({"device": "abacus"}, "the device abacus"),
        ({"device": "NVIDIA L4"}, "the device NVIDIA L4"),
        ({"n_layers": 4}, "n_layers of 4 (only 12 to 126)"),
        ({"world_size": 4096}, "world_size of 4096 (only 1 to 1024)"),
        ({"n_layers": None}, "this kind of model"),
        ({"cpu_offload": True}, "offloading"),
    ],
)
def test_nothing_is_predicted_beyond_the_sources(changes: dict[str, Value], what: str) -> None:
    row = {name: value for name, value in {**ROW, **changes}.items() if value is not None}
    prior = PublicPrior.read(SHIPPED)
    assert prior.uncovered(row) == what
    for predicted in (prior.tokens_per_second([ROW, row]), prior.peak_gib([ROW, row])):
        assert np.isfinite(predicted.logarithm[0])
        assert np.isfinite(predicted.logarithm[1]) == np.isfinite(predicted.spread[1]) == (what == "")


def test_a_device_that_is_not_told_is_not_covered() -> None:
    row = {name: value for name, value in ROW.items() if name != "device"}
    assert PublicPrior.read(SHIPPED).uncovered(row) == "a device that is not told"
    assert prior_of(Facts.from_rows([row])) is HAND_SET


def test_the_variance_between_sources_sets_the_width() -> None:
    prior = PublicPrior.read(SHIPPED)
    wide = replace(prior, constants=replace(prior.constants, width=2.0 * prior.constants.width))
    near, far = (each.tokens_per_second([ROW]) for each in (prior, wide))
    assert near.logarithm == far.logarithm
    assert prior.widening * prior.error < near.spread[0] < far.spread[0] < 2.0 * near.spread[0]


def test_a_few_launches_are_as_sure_as_none() -> None:
    prior = PublicPrior.read(SHIPPED)
    on_cpu: dict[str, Value] = {**ROW, "device": "cpu"}
    across: dict[str, Value] = {**on_cpu, "world_size": 128}  # two nodes of processes that share a host
    rows: list[dict[str, Value]] = [ROW, ROW, on_cpu, across, {"dlrm": True}]
    first = prior.tokens_per_second(rows)
    known = Prediction(logarithm=np.zeros(5), spread=np.array([2.0, 0.01, 2.0, 2.0, 2.0]))
    near, too_sure, told, waiting, other = prior.after_few_launches(known, rows, n_launches=9).spread.tolist()
    assert near == too_sure == first.spread[0]
    assert told == other == 2.0 < waiting
    assert prior.after_few_launches(known, rows, n_launches=10) is known  # their own errors have set the spread


def test_the_formulas_start_from_the_prior_on_its_devices_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    prior = public_prior()
    assert prior is not None
    on_cpu = {**ROW, "device": "cpu"}
    assert prior_of(Facts.from_rows([ROW])) is prior.constants
    assert prior_of(Facts.from_rows([ROW, on_cpu])) is prior_of(Facts.from_rows([on_cpu])) is HAND_SET
    (first,) = Roofline().tokens_per_second([ROW])
    assert first == pytest.approx(prior.tokens_per_second([ROW]).throughput[0])
    of_cpu = Roofline().tokens_per_second([on_cpu])
    monkeypatch.setenv(VARIABLE, "off")
    assert public_prior() is None
    assert Roofline().tokens_per_second([ROW])[0] != first
    assert Roofline().tokens_per_second([on_cpu]) == of_cpu


def test_own_launches_take_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both priors end at the same prediction once launches tell the constants."""
    rows = [
        {**ROW, "micro_batch_size": micro, "gradient_accumulation_steps": rounds, "n_layers": layers}
        for micro in (1, 2, 4, 8)
        for rounds in (1, 4)
        for layers in (16, 32, 64)
    ]
    true = 0.5 * Roofline().tokens_per_second(rows)
    gaps = []
    for n in (0, 2, len(rows)):
        asked = []
        for option in (str(SHIPPED), "off"):
            monkeypatch.setenv(VARIABLE, option)
            trials = [
                Trial.completed(workload=row, config={}, tokens_per_second=float(speed))
                for row, speed in zip(rows[:n], true[:n], strict=True)
            ]
            history = TrainingTable.from_trials(trials, objective="tokens_per_second")
            formulas = Roofline().fit(history, rng=np.random.default_rng(0))
            asked.append(np.log(formulas.tokens_per_second(rows[-3:]) / true[-3:]))
        gaps.append(float(np.abs(np.array(asked)).max()))
    assert gaps[0] > 0.5 > 0.15 > gaps[1] > gaps[2]
    assert gaps[2] < 0.02


OF_UNKNOWN_RANGE = SHIPPED.read_text().replace('"layers"', '"storeys"')


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 9}', "no JSON", OF_UNKNOWN_RANGE])
def test_another_file_is_one_sentence(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "prior.json"
    path.write_text(text)
    for given in (path, tmp_path / "missing.json"):
        monkeypatch.setenv(VARIABLE, str(given))
        with pytest.raises(RecordError, match=f"{given} is no file of scripts/learn-public-prior: .*{VARIABLE}"):
            public_prior()


def test_a_benchmark_that_reads_a_table_uses_a_prior_without_it() -> None:
    leave_out("nanotron")
    assert not {"nanotron"} & {*_sources()}
    assert len(_sources()) == 6
    leave_out("llm-foundry")
    assert not {"nanotron", "llm-foundry"} & {*_sources()}
    assert len(_sources()) == 5
    use_prior_without("DLPerf")
    assert {*_sources()} == {*PublicPrior.read(SHIPPED).sources} - {"DLPerf"}
    use_hand_set()
    assert public_prior() is None
    with pytest.raises(FileNotFoundError, match="--without DLPerf --without nanotron"):
        use_prior_without("nanotron", "DLPerf")


def _sources() -> tuple[str, ...]:
    prior = public_prior()
    assert prior is not None
    return prior.sources


def test_each_file_of_the_benchmarks_lacks_what_its_name_says() -> None:
    shipped = {*PublicPrior.read(SHIPPED).sources}
    left_out = [{name} for name in shipped] + [{"nanotron", "llm-foundry"}]
    assert {prior_without(*names) for names in left_out} == {*FOLDER.iterdir()}
    for names in left_out:
        assert {*PublicPrior.read(prior_without(*names)).sources} == shipped - names


def made_up(name: str, speed: float, seed: int) -> Source:
    """Return a source whose trainings all run at ``speed`` times what the hand-set constants say."""
    rng = np.random.default_rng(seed)
    rows = [
        {**ROW, "micro_batch_size": int(rng.choice([4, 8, 16])), "n_layers": int(rng.choice([24, 32]))}
        for _ in range(8)
    ]
    use_hand_set()
    tokens = np.array([float(row["micro_batch_size"]) * 4096.0 * 8.0 for row in rows])
    seconds = np.log(tokens / Roofline().tokens_per_second(rows)) - np.log(speed)
    return Source(name=name, rows=rows, log_seconds=seconds, log_peak_gib=np.full(8, np.nan))


def test_learning_finds_the_mean_and_the_variance_between_sources(tmp_path: Path) -> None:
    priors = []
    for speeds in ((0.9, 0.9, 0.9), (0.6, 0.9, 1.35)):
        path = tmp_path / f"{speeds[0]}.json"
        path.write_text(json.dumps(learned_prior([made_up(f"s{n}", speed, n) for n, speed in enumerate(speeds)])))
        priors.append(PublicPrior.read(path))
    use_hand_set()
    asked = [{**ROW, "micro_batch_size": 8}]
    hand_set = Roofline().tokens_per_second(asked)
    same, different = (prior.tokens_per_second(asked) for prior in priors)
    for found in (same, different):
        assert found.throughput[0] / hand_set[0] == pytest.approx(0.93, abs=0.08)  # shrunk towards the hand-set 1
    assert different.spread[0] > 1.15 * same.spread[0]
    assert priors[0].memory_sources == ()
    assert np.isnan(priors[0].peak_gib(asked).logarithm).all()


def test_the_width_is_what_the_farthest_source_needs_that_the_prior_has_seen() -> None:
    sources = [made_up(f"s{n}", speed, n) for n, speed in enumerate((0.9, 0.9, 0.1))]
    found = LeftOut(sources=sources, rounds=1)
    whole, alike = found.table(), found.table("s2")
    assert alike == LeftOut(sources=sources[:2], rounds=1).table()
    assert PublicPrior.of(alike).widening == 1.0  # no surer than the variance between constants
    assert PublicPrior.of(whole).widening > 2.0
    # All are on one node: nothing tells the wait across nodes, so the cautious end counts.
    assert PublicPrior.of(whole).wait_s == max(WAITS)
