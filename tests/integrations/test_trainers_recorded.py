"""Trainers of other libraries, launched for real: what is recorded is what they did."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integrations.recorded import facts, launched, needs
from torchx_cubicml.records.trial import State

if TYPE_CHECKING:
    from pathlib import Path

    from torchx_cubicml.records.trial import Trial

pytestmark = pytest.mark.launch

SPACE = """
trainer = "hf"
[parameters]
micro_batch_size = "auto"
sharding_strategy = ["FULL_SHARD", "SHARD_GRAD_OP"]
activation_checkpointing = "auto"
"""


@pytest.fixture(scope="module")
def hugging_face(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trial, dict[str, object]]:
    folder = tmp_path_factory.mktemp("hf")
    (folder / "space.toml").write_text(SPACE)
    words = "--use_cpu True --max_steps 16 --report_to none --output_dir out --save_strategy no --eval_strategy steps "
    words += "--eval_steps 8 --logging_steps 4 --per_device_train_batch_size 4 --gradient_accumulation_steps 2 "
    words += "--gradient_checkpointing True"
    options = ("--cubicml-space", "space.toml", "--cubicml-mode", "record")
    return launched(folder, "train_hf.py", *words.split(), "--fsdp", "full_shard auto_wrap", options=options)


@needs("transformers", "accelerate")
class TestHuggingFaceTrainer:
    def test_steps_batch_and_accumulation_are_those_of_the_trainer(
        self, hugging_face: tuple[Trial, dict[str, object]]
    ) -> None:
        trial, report = hugging_face
        assert (trial.state, report["steps"], report["micro_batches"]) == (State.COMPLETED, 16, 32)
        assert trial.measurement is not None
        assert trial.measurement.steps_counted + trial.measurement.warmup_steps == 16
        batch = ("micro_batch_size", "gradient_accumulation_steps", "dp_degree", "global_batch_size", "seq_len")
        assert facts(trial, *batch) == (4, 2, 2, 16, 32)
        model = ("n_params", "n_layers", "activation_checkpointing", "optimizer")
        assert facts(trial, *model) == (report["n_params"], 2, "full", "AdamW")

    def test_sharding_is_recorded_as_it_was_applied(self, hugging_face: tuple[Trial, dict[str, object]]) -> None:
        trial, report = hugging_face
        assert (report["wrapped"], report["fsdp"]) == ("DistributedDataParallel", False)
        assert trial.config["sharding_strategy"] == "FULL_SHARD"
        assert trial.observed["sharding_strategy"] == "DDP"

    def test_throughput_is_at_least_what_the_trainer_prints(
        self, hugging_face: tuple[Trial, dict[str, object]]
    ) -> None:
        trial, report = hugging_face
        measured = trial.measurement
        assert measured is not None
        assert measured.samples_per_second is not None
        assert measured.samples_per_second == pytest.approx(16 / measured.mean_step_time_s)
        assert measured.tokens_per_second == pytest.approx(32 * measured.samples_per_second)
        whole = report["metrics"]["train_samples_per_second"]  # warm-up and evaluation with it
        assert measured.samples_per_second > whole
        assert measured.share_outside_steps is not None
        assert measured.share_outside_steps > 0.05


@needs("lightning")
@pytest.mark.parametrize(("strategy", "sharding"), [("ddp", "DDP"), ("fsdp2", ("FULL_SHARD", "FULL_SHARD"))])
def test_lightning_is_recorded_as_it_trained(tmp_path: Path, strategy: str, sharding: object) -> None:
    trial, report = launched(tmp_path, "train_lightning.py", "--strategy", strategy, "--accumulate", "2")
    assert (trial.state, report["steps"], report["micro_batches"]) == (State.COMPLETED, 20, 40)
    assert report["validations"] > 0
    measured = trial.measurement
    assert measured is not None
    assert measured.steps_counted + measured.warmup_steps == 20
    batch = ("micro_batch_size", "gradient_accumulation_steps", "dp_degree", "global_batch_size", "seq_len")
    assert facts(trial, *batch) == (4, 2, 2, 16, 16)
    assert facts(trial, "sharding_strategy", "n_params", "n_layers") == (sharding, report["n_params"], 2)
    shards = (2, 1) if strategy == "fsdp2" else (1, 2)
    assert facts(trial, "dp_shard_degree", "dp_replicate_degree") == shards
    assert measured.samples_per_second == pytest.approx(16 / measured.mean_step_time_s)
    assert measured.tokens_per_second == pytest.approx(16 * measured.samples_per_second)
