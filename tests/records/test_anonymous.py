"""Laws of an anonymous export: no text of the owner in it, and the same predictions from it."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchx_cubicml.cli.history_export import field_rows
from torchx_cubicml.predictors import DEFAULT_PREDICTOR
from torchx_cubicml.predictors.evaluation import evaluate
from torchx_cubicml.predictors.features.device_specs import find_hardware, hardware_names
from torchx_cubicml.recorder.logs.formats import LOG_FORMATS
from torchx_cubicml.records.anonymous import AnonymousTrials, anonymous_trials
from torchx_cubicml.records.iso_time import parse_time
from torchx_cubicml.records.measurement import Measurement
from torchx_cubicml.records.memory_failure import plain_memory_reason, proves_too_large
from torchx_cubicml.records.shareable_facts import KEPT_NAMES, LEFT_OUT, LOG_SOURCES, shareable_text
from torchx_cubicml.records.trial import Origin, State, Trial
from torchx_cubicml.store import TrialStore, read_trials

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.records.values import Value

ROOT = Path(__file__).resolve().parents[2]
N_TEXTS = 24
MEASUREMENT = Measurement(tokens_per_second=1000.0, steps_counted=20, mean_step_time_s=0.5, statistic="mean")


def device_name(text: str) -> str:
    found = find_hardware(text)
    return found.name if found is not None else ""


def exported(trials: Sequence[Trial]) -> AnonymousTrials:
    numbers = count()
    return anonymous_trials(trials, device_name=device_name, random_hex=lambda: f"{next(numbers):012x}")


def trials_with(texts: Sequence[str]) -> list[Trial]:
    """Return trials of every kind with these texts in every place where a record can hold one."""
    text = iter(texts)
    program, other, name, fact, word, value = (next(text) for _ in range(6))
    first = Trial(
        trial_id=next(text),
        launch_id=next(text),
        workload={"program": program, "n_layers": 12, name: value, fact: 7, "world_size": 2},
        config={"micro_batch_size": 4, "precision": word, name: 30, next(text): (value, "x", 1.5, True)},
        state=State.COMPLETED,
        measurement=replace(MEASUREMENT, source=next(text), other_source=next(text), other_tokens_per_second=1.0),
        observed={
            **dict.fromkeys(sorted(KEPT_NAMES), word),
            **dict.fromkeys(sorted(LEFT_OUT), value),
            "embedding_tables": (word, value),
            "n_params": 1000,
            next(text): next(text),
            "host": next(text),
            "job_id": next(text),
        },
        reason=next(text),
        suggestion={"reason": next(text)},
        arguments=(next(text), f"--data={next(text)}"),
        digests={next(text): "0123abcd"},
        provenance={"owner": next(text), "commit": next(text), "package_version": next(text), "space": word},
        command={"words": (next(text), value)},
        started_at="2026-03-01T10:00:00+01:00",
        ended_at="2026-03-01T10:05:00+01:00",
        origin=Origin.TUNE,
    )
    failed = replace(
        first, trial_id=f"{first.trial_id}b", workload={"program": other, fact: 9}, state=State.OUT_OF_MEMORY,
        measurement=None, started_at=program, ended_at=other,
    )  # fmt: skip
    return [first, failed, replace(first, trial_id=f"{first.trial_id}c", config={"micro_batch_size": 8, name: 20})]


def is_free(text: str) -> bool:
    """Return whether a text is none that an export keeps: no standard word, version, time or message of PyTorch."""
    known = (shareable_text(name, text, device_name=device_name) for name in KEPT_NAMES)
    return (
        text not in KEPT_NAMES | LEFT_OUT | LOG_SOURCES | {"program", "project"}
        and parse_time(text) is None
        and not plain_memory_reason(text)
        and all(word is None for word in known)
    )


TEXTS = st.lists(st.text(min_size=1, max_size=12).filter(is_free), min_size=N_TEXTS, max_size=N_TEXTS, unique=True)


@settings(max_examples=60)
@given(TEXTS)
def test_an_export_does_not_depend_on_any_text(texts: list[str]) -> None:
    plain = [f"plain text {number}" for number in range(N_TEXTS)]
    assert exported(trials_with(texts)).trials == exported(trials_with(plain)).trials


def test_numbers_of_unknown_names_become_ranks_and_names_pseudonyms() -> None:
    trials = exported(trials_with([f"plain text {number}" for number in range(N_TEXTS)]))
    first, failed, last = trials.trials
    name = trials.renamed["plain text 2"]
    assert (last.config[name], first.config[name]) == (0, 1), "20 and 30, in their order"
    fact = trials.renamed["plain text 3"]
    assert (first.workload[fact], failed.workload[fact]) == (0, 1)
    assert first.workload["n_layers"] == 12
    assert first.workload["program"] == last.workload["program"] != failed.workload["program"]
    assert first.config["precision"] == first.observed["precision"], "one pseudonym for one text of one name"
    assert first.started_at == "2000-01-01T00:00:00+00:00"
    assert first.ended_at == "2000-01-01T00:05:00+00:00"


@pytest.mark.parametrize(
    ("projects", "n_programs"),
    [
        ((("gpt:src",), ("host.org/me/gpt:src", "gpt:src")), 1),
        ((("gpt:src",), ("gpt:tests",)), 2),
        ((("gpt:src",), None), 1),
        ((("gpt:src",), ("other:src",), None), 3),
    ],
)
def test_programs_of_two_projects_stay_apart(projects: tuple[Value | None, ...], n_programs: int) -> None:
    trials = [
        Trial.completed(
            workload={"program": "train.py", **({"project": each} if each else {})}, config={}, tokens_per_second=9.0
        )
        for each in projects
    ]
    shared = exported(trials).trials
    assert len({trial.workload["program"] for trial in shared}) == n_programs
    assert all("project" not in trial.workload for trial in shared)


def test_two_exports_share_no_pseudonym() -> None:
    trials = trials_with([f"plain text {number}" for number in range(N_TEXTS)])
    one, other = (anonymous_trials(trials, device_name=device_name) for _ in range(2))
    assert not {*one.renamed.values()} & {*other.renamed.values()}
    programs = [{trial.workload["program"] for trial in each.trials} for each in (one, other)]
    assert not programs[0] & programs[1]
    assert not {trial.trial_id for trial in one.trials} & {trial.trial_id for trial in other.trials}


def test_standard_words_devices_and_versions_stay() -> None:
    facts: dict[str, Value] = {
        "sharding_strategy": ("FULL_SHARD", "FULL_SHARD_4"),
        "precision": "bfloat16",
        "device": "NVIDIA H100 80GB HBM3",
        "torch_version": "2.5.1+cu124.me",
        "compile": True,
        "optimizer": "AdamW",
        "mesh": "dp_shard=2,tp=4",
        "embedding_ranks": ("0+1", "0-7"),
        "backend": "nccl",
        "pp_schedule": "Schedule1F1B",
    }
    (trial,) = exported(
        [replace(Trial.completed(workload={}, config={}, tokens_per_second=9.0), observed=facts)]
    ).trials
    kept = {"precision": "bf16", "device": "h100", "torch_version": "2.5", "pp_schedule": "1F1B"}
    assert trial.observed == {**facts, **kept}


@pytest.mark.parametrize(
    "reason",
    [
        "/home/me/x.py: MemoryError: no",
        "GPU 0 has a total capacity of 80.00 GiB of which 512.00 MiB is free. of me, this process has 39.50 GiB memory "
        "in use at /home/me",
        "CUDA out of memory at /home/me",
    ],
)
def test_a_failure_proves_as_much_as_before(reason: str) -> None:
    lost = Trial.infeasible(workload={}, config={})
    trial = replace(lost, reason=reason, observed={"devices_per_node": 8})
    (shared,) = exported([trial]).trials
    assert "me" not in shared.reason.split()
    assert "/" not in shared.reason
    assert proves_too_large(shared) == proves_too_large(trial)


def test_a_caught_failure_is_shared_as_one() -> None:
    ran = Trial.completed(workload={}, config={"micro_batch_size": 8}, samples_per_second=9.0)
    caught = "torch.OutOfMemoryError: CUDA out of memory at /home/me"
    (shared,) = exported([replace(ran, observed={"micro_batch_size": 4, "caught_out_of_memory": caught})]).trials
    assert (shared.state, shared.measurement, shared.observed) == (State.OUT_OF_MEMORY, None, {})
    assert proves_too_large(shared)


def test_a_crowded_measurement_keeps_its_error_once(tmp_path: Path) -> None:
    crowded = {"host_cpus": 2, "other_busy_cpus": 1.0, "idle_cpus": 0.0, "host": "node7"}
    trial = replace(Trial.completed(workload={}, config={}, tokens_per_second=9.0), observed=crowded)
    source, target = TrialStore(str(tmp_path / "a")), TrialStore(str(tmp_path / "b"))
    source.add(trial)
    (read,) = read_trials(source.url)[0]
    for each in exported([read]).trials:
        target.add(each)
    (again,) = read_trials(target.url)[0]
    assert read.measurement is not None
    assert read.measurement.relative_error is not None
    assert again.measurement == read.measurement


def test_a_time_beyond_the_calendar_is_dropped() -> None:
    first = replace(
        Trial.completed(workload={}, config={}, tokens_per_second=9.0), started_at="0001-01-01T00:00:00+00:00"
    )
    last = replace(first, trial_id="x", started_at="9999-12-31T00:00:00+00:00", ended_at="9999-12-31T00:00:00+00:00")
    assert [trial.started_at for trial in exported([first, last]).trials] == ["2000-01-01T00:00:00+00:00", ""]


@pytest.mark.parametrize(("order", "kept"), [("dp,tp", True), ("pp", True), ("dp,secret", False), ("", False)])
def test_an_order_of_known_axes_is_kept(order: str, kept: bool) -> None:
    shared = shareable_text("mesh_order", order, device_name=device_name)
    assert shared == (order if kept else None)


def test_a_pipeline_of_torchrec_is_kept_and_one_of_the_owner_is_not() -> None:
    names = ("TrainPipelineSparseDist", "AcmeTrainPipeline")
    shared = [shareable_text("train_pipeline", name, device_name=device_name) for name in names]
    assert shared == ["TrainPipelineSparseDist", None]


def test_planned_trials_are_left_out() -> None:
    plan = Trial(trial_id="a", workload={}, config={}, state=State.PLANNED)
    assert exported([plan]).trials == ()


def test_every_recorded_fact_is_kept_or_left_out() -> None:
    page = (ROOT / "docs" / "recorded-facts.md").read_text()
    facts = page.partition("## Observed facts")[2].partition("## The measurement")[0]
    tables = (table.partition("\n#")[0] for table in facts.split("| fact |")[1:])
    cells = [line.split("|")[1] for table in tables for line in table.splitlines() if line.startswith("| `")]
    names = {name for cell in cells for name in cell.replace("`", "").replace(" ", "").split(",")}
    assert len(names) > 60
    assert names - KEPT_NAMES - LEFT_OUT == set(), "decide in records/shareable_facts.py"
    assert not KEPT_NAMES & LEFT_OUT


def test_the_lists_are_those_of_the_package() -> None:
    assert {log_format.name for log_format in LOG_FORMATS} == LOG_SOURCES
    assert [shareable_text("device", name, device_name=device_name) for name in hardware_names()] == [*hardware_names()]


def test_the_summary_names_each_field_with_examples() -> None:
    rows = {
        name: (number, text)
        for name, number, text in field_rows(exported(trials_with([*map(str, range(900, 924))])).trials)
    }
    assert rows["workload.n_layers"] == (2, "12")
    assert rows["config.micro_batch_size"] == (3, "4; 8")
    assert rows["state"] == (3, "completed; out_of_memory")
    assert "measurement.tokens_per_second" in rows


def simulated(rng: np.random.Generator, workload: int, number: int) -> Trial:
    """Return a trial of a simulated training with standard and own parameters, texts and numbers."""
    batch, degree, workers, bucket = (
        int(rng.choice(each)) for each in ((1, 2, 4, 8, 16), (1, 2, 4, 8), (0, 2, 4, 8), (5, 25, 50, 100))
    )
    layout, fused = str(rng.choice(("channels", "blocks", "rows"))), bool(rng.integers(2))
    speed = 1e4 * (workload + 1) * batch**0.6 / degree**0.3 * (1 + 0.05 * workers**0.5) * (1 - 0.002 * abs(bucket - 25))
    speed *= (
        {"channels": 1.0, "blocks": 1.2, "rows": 0.8}[layout] * (1.1 if fused else 1.0) * np.exp(rng.normal(0, 0.03))
    )
    start = f"2026-02-{1 + workload:02d}T{number // 60:02d}:{number % 60:02d}:00+00:00"
    return Trial(
        trial_id=f"{workload}-{number}",
        workload={"program": f"/home/me/train{workload}.py", "n_layers": 12 * (workload + 1), "world_size": 8},
        config={"micro_batch_size": batch, "tp_degree": degree, "our_workers": workers, "our_bucket": bucket,
                "our_layout": layout, "fused_op": fused, "activation_checkpointing": "none"},
        state=State.COMPLETED,
        measurement=replace(MEASUREMENT, tokens_per_second=float(speed), relative_error=0.02),
        observed={"device": "NVIDIA H100 80GB HBM3", "n_params": 10**8 * (workload + 1), "cpu": "Xeon 8480",
                  "host": "node7", "torch_version": "2.5.1", "micro_batch_size": batch},
        started_at=start,
        ended_at=start,
    )  # fmt: skip


@pytest.mark.parametrize("split", ["time", "workload"])
@pytest.mark.parametrize("predictor", [DEFAULT_PREDICTOR, "boosting"])
def test_a_predictor_learns_as_much_from_an_export(predictor: str, split: str) -> None:
    rng = np.random.default_rng(7)
    trials = [simulated(rng, workload, number) for workload in range(3) for number in range(40)]
    pseudonyms = random.Random(1)  # their order breaks ties, which changes tau by up to 0.015
    shared = anonymous_trials(
        trials, device_name=device_name, random_hex=lambda: f"{pseudonyms.getrandbits(48):012x}"
    ).trials
    before, after = (evaluate(each, predictor=predictor, split=split) for each in (trials, shared))
    assert after.n_test == before.n_test
    assert after.tau == pytest.approx(before.tau, abs=0.01)
