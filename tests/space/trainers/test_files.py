from __future__ import annotations

import json
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.cli.starter import starter_space, unredirected_outputs
from torchx_cubicml.errors import LaunchError
from torchx_cubicml.history.same_training import not_permitted
from torchx_cubicml.launch import Launch, change_for_profiling, patches_of, read_config, with_rule_facts, write_config
from torchx_cubicml.space import TuneChanges, computed_global_batch_size
from torchx_cubicml.space.toml import parse_space

if TYPE_CHECKING:
    from pathlib import Path

    from torchx_cubicml.space import SearchSpace

DEEPSPEED = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 2, "overlap_comm": True}}
AUTO = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "zero_optimization": {"stage": 2, "overlap_comm": False, "reduce_bucket_size": 5e8},
    "bf16": {"enabled": "auto"},
}
ACCELERATE = """\
compute_environment: LOCAL_MACHINE # of ours
distributed_type: FSDP
downcast_bf16: 'no'
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_backward_prefetch: BACKWARD_PRE
  fsdp_forward_prefetch: false
  fsdp_sharding_strategy: {}
  fsdp_activation_checkpointing: false
mixed_precision: bf16
num_processes: 8
"""
TORCHTITAN = """\
[job]
dump_folder = "./outputs"
[training]
local_batch_size = 8
global_batch_size = 64
seq_len = 2048 # tokens
[parallelism]
tensor_parallel_degree = 2
pipeline_parallel_degree = 1
context_parallel_degree = 1
data_parallel_replicate_degree = 1
data_parallel_shard_degree = -1
[activation_checkpoint]
mode = "selective"
[compile]
enable = true
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "ds.json").write_text(json.dumps(DEEPSPEED))
    (tmp_path / "auto.json").write_text(json.dumps(AUTO))
    (tmp_path / "fsdp.yaml").write_text(ACCELERATE.format("FULL_SHARD"))
    (tmp_path / "numbers.yaml").write_text(ACCELERATE.format(2))
    (tmp_path / "llama.toml").write_text(TORCHTITAN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def launch(command: str, program: str = "train.py", *, is_module: bool = False) -> Launch:
    return Launch(program=program, is_module=is_module, script_args=tuple(shlex.split(command)), world_size=8)


def space_of(trainer: str, *parameters: str) -> SearchSpace:
    lines = "\n".join(parameters)
    return parse_space(f'trainer = "{trainer}"\n[parameters]\n{lines}\n', where="x.toml")


class TestDeepSpeed:
    PARAMETERS = ('micro_batch_size = "auto"', 'sharding_strategy = "auto"', 'overlap_comm = "auto"')

    @pytest.mark.parametrize(
        ("file", "accumulation"),
        [
            ({}, 1),
            ({"gradient_accumulation_steps": 3}, 3),
            ({"train_batch_size": 64}, 2),
            ({"train_batch_size": 96, "gradient_accumulation_steps": 3}, 3),
        ],
        ids=["neither", "accumulation", "global batch", "both"],
    )
    def test_the_global_batch_stays_in_every_spelling(
        self, folder: Path, file: dict[str, int], accumulation: int
    ) -> None:
        (folder / "ds.json").write_text(json.dumps({**DEEPSPEED, **file}))
        space, user = space_of("deepspeed", *self.PARAMETERS), launch("--deepspeed --deepspeed_config ds.json")
        workload, own = read_config(user, space)
        assert (own["micro_batch_size"], own["sharding_strategy"], own["overlap_comm"]) == (4, "SHARD_GRAD_OP", True)
        assert own["gradient_accumulation_steps"] == accumulation
        bound = space.bind(workload=workload, current=own)
        batch = computed_global_batch_size(workload=workload, current=own)
        configs = list(bound.configs())
        assert {config["micro_batch_size"] for config in configs} >= {1, 2, 4}
        for config in configs:
            written = write_config(user, space, config)
            assert written.script_args == user.script_args
            assert computed_global_batch_size(workload=workload, current=read_config(written, space)[1]) == batch
        other = next(config for config in configs if config["micro_batch_size"] == 1)
        values = dict(patches_of(write_config(user, space, other))[0].values)
        assert values["gradient_accumulation_steps",] == 4 * accumulation
        assert ("train_batch_size",) not in values

    def test_a_contradictory_file_is_reported(self, folder: Path) -> None:
        (folder / "ds.json").write_text(json.dumps({**DEEPSPEED, "train_batch_size": 3}))
        with pytest.raises(LaunchError, match="gradient_accumulation_steps"):
            read_config(launch("--deepspeed_config ds.json"), space_of("deepspeed", *self.PARAMETERS))

    def test_precision_stays_as_it_is(self) -> None:
        space = parse_space('trainer = "deepspeed"\n[parameters.bf16]\nchoices = [false, true]\n', where="x.toml")
        assert read_config(launch("--deepspeed_config ds.json"), space)[1] == {"bf16": False}
        assert not_permitted(space) == ("bf16",)

    def test_stages_are_written_as_numbers(self) -> None:
        space = space_of("deepspeed", 'sharding_strategy = "auto"')
        written = write_config(launch("--deepspeed_config ds.json"), space, {"sharding_strategy": "FULL_SHARD"})
        assert dict(patches_of(written)[0].values) == {("zero_optimization", "stage"): 3}


class TestHuggingFace:
    COMMAND = "--output_dir out --per_device_train_batch_size 4 --deepspeed {}"

    def test_the_flag_fills_what_the_file_leaves_open(self) -> None:
        space = space_of("hf", 'micro_batch_size = "auto"', 'sharding_strategy = ["SHARD_GRAD_OP", "FULL_SHARD"]')
        user = launch(self.COMMAND.format("auto.json"))
        workload, own = read_config(user, space)
        assert own == {"micro_batch_size": 4, "sharding_strategy": "SHARD_GRAD_OP", "gradient_accumulation_steps": 1}
        change = {"micro_batch_size": 2, "gradient_accumulation_steps": 2, "sharding_strategy": "FULL_SHARD"}
        written = write_config(user, space, {**own, **change})
        assert " ".join(written.script_args) == (
            "--output_dir out --per_device_train_batch_size 2 --deepspeed auto.json --gradient_accumulation_steps 2"
        )
        assert dict(patches_of(written)[0].values) == {("zero_optimization", "stage"): 3}
        assert workload["world_size"] == 8

    def test_values_of_the_file_are_not_contradicted(self) -> None:
        space = space_of("hf", 'micro_batch_size = "auto"')
        user = launch(self.COMMAND.format("ds.json"))
        own = read_config(user, space)[1]
        with pytest.raises(LaunchError, match=r"must agree with train_micro_batch_size_per_gpu in ds.json, which is 4"):
            write_config(user, space, {**own, "micro_batch_size": 2})

    def test_a_file_of_arguments_may_say_what_no_flag_does(self) -> None:
        space = space_of("hf", 'micro_batch_size = "auto"')
        with pytest.raises(LaunchError, match=r"and args\.json may set it"):
            read_config(launch("args.json"), space)
        assert read_config(launch("--deepspeed auto.json"), space)[1]["micro_batch_size"] == 8

    def test_without_a_file_the_flag_counts(self) -> None:
        space = space_of("hf", 'sharding_strategy = ["SHARD_GRAD_OP", "FULL_SHARD"]')
        user = launch("--output_dir out --fsdp 'full_shard auto_wrap'")
        written = write_config(user, space, {"sharding_strategy": "SHARD_GRAD_OP"})
        assert written.script_args[-1] == "shard_grad_op auto_wrap"


def launched_by_accelerate(options: str) -> Launch:
    return replace(launch("--lr 1", "train.py"), launcher="accelerate", launcher_args=tuple(options.split()))


class TestAccelerate:
    @pytest.mark.parametrize(("file", "own"), [("fsdp.yaml", "FULL_SHARD"), ("numbers.yaml", "SHARD_GRAD_OP")])
    def test_fsdp_keys(self, file: str, own: str) -> None:
        space = space_of("accelerate", 'sharding_strategy = "auto"', 'activation_checkpointing = "auto"')
        user = launched_by_accelerate(f"--config_file {file}")
        assert read_config(user, space)[1] == {"sharding_strategy": own, "activation_checkpointing": "none"}
        written = write_config(user, space, {"sharding_strategy": "NO_SHARD", "activation_checkpointing": "full"})
        options = f"--config_file {file} --fsdp_sharding_strategy NO_SHARD --fsdp_activation_checkpointing true"
        assert (" ".join(written.launcher_args), written.script_args) == (options, user.script_args)
        assert not patches_of(written)

    def test_an_option_of_the_launcher_takes_precedence(self) -> None:
        space = space_of("accelerate", 'sharding_strategy = "auto"', 'forward_prefetch = "auto"')
        user = launched_by_accelerate("--fsdp_forward_prefetch true --config_file fsdp.yaml")
        assert read_config(user, space)[1] == {"sharding_strategy": "FULL_SHARD", "forward_prefetch": True}
        written = write_config(user, space, {"forward_prefetch": False})
        assert written.launcher_args == ("--fsdp_forward_prefetch", "false", "--config_file", "fsdp.yaml")


class TestTorchtitan:
    PARAMETERS = ('tp_degree = "auto"', 'micro_batch_size = "auto"', 'activation_checkpointing = "auto"')

    def test_the_file_is_read_and_flags_are_written(self) -> None:
        space = space_of("torchtitan", *self.PARAMETERS, "compile = [false, true]")
        user = launch("--job.config_file llama.toml", "torchtitan.train", is_module=True)
        workload, own = read_config(user, space)
        assert own["tp_degree"] == 2
        assert (workload["global_batch_size"], workload["seq_len"]) == (64, 2048)
        assert own == {
            "tp_degree": 2,
            "micro_batch_size": 8,
            "activation_checkpointing": "selective",
            "compile": True,
            "gradient_accumulation_steps": 2,
        }
        change = {**own, "tp_degree": 1, "activation_checkpointing": "none", "compile": False}
        written = write_config(user, space, {**change, "gradient_accumulation_steps": 1})
        assert written.files == {}
        assert " ".join(written.script_args) == (
            "--job.config_file llama.toml --parallelism.tensor_parallel_degree 1 --activation_checkpoint.mode none "
            "--compile.no-enable"
        )
        back = write_config(written, space, {**own})
        assert read_config(back, space)[1] == own

    def test_words_of_the_file_are_standard_words(self, tmp_path: Path) -> None:
        names = ("cp_method", "selective_recompute", "tp_overlap")
        space = space_of("torchtitan", *self.PARAMETERS, *(f'{name} = "auto"' for name in names))
        file = tmp_path / "older.toml"
        rotation = 'context_parallel_rotate_method = "alltoall"\nenable_async_tensor_parallel = false'
        text = TORCHTITAN.replace("[parallelism]", f"[parallelism]\n{rotation}")
        file.write_text(text.replace('mode = "selective"', 'mode = "selective"\nselective_ac_option = "2"'))
        user = launch(f"--job.config_file {file}", "torchtitan.train", is_module=True)
        _, own = read_config(user, space)
        assert [own[name] for name in names] == ["p2p", "2", False]
        change = {"cp_method": "all_gather", "selective_recompute": "op", "tp_overlap": True}
        assert write_config(user, space, {**own, **change}).script_args[2:] == (
            *("--parallelism.context_parallel_rotate_method", "allgather"),
            *("--activation_checkpoint.selective_ac_option", "op", "--parallelism.enable_async_tensor_parallel"),
        )

    def test_a_flag_counts_more_than_the_file(self) -> None:
        space = space_of("torchtitan", *self.PARAMETERS)
        user = launch("--job.config_file llama.toml --parallelism.tensor_parallel_degree 4", "torchtitan.train")
        assert read_config(user, space)[1]["tp_degree"] == 4


@pytest.mark.parametrize(
    ("command", "program", "proposed"),
    [
        (
            "--deepspeed --deepspeed_config ds.json --output_dir out",
            "train.py",
            ["micro_batch_size", "sharding_strategy", "overlap_comm", "reduce_bucket_size"],
        ),
        (
            "--deepspeed auto.json --per_device_train_batch_size 4 --output_dir out",
            "train.py",
            ["micro_batch_size", "overlap_comm", "reduce_bucket_size"],
        ),
        ("--config_file fsdp.yaml", "accelerate", ["sharding_strategy", "backward_prefetch"]),
        ("--job.config_file llama.toml", "torchtitan.train", ["tp_degree", "micro_batch_size", "compile"][:2]),
    ],
    ids=["deepspeed", "hf", "accelerate", "torchtitan"],
)
def test_init_reads_the_files_and_proposes_what_they_say(command: str, program: str, proposed: list[str]) -> None:
    user = launch(command, program, is_module="." in program.removesuffix(".py"))
    user = launched_by_accelerate(command) if program == "accelerate" else user
    text = starter_space(user, "")
    space = parse_space(text, where="x.toml")
    assert set(proposed) <= {parameter.name for parameter in space.parameters}, text
    workload, own = read_config(user, space)
    bound = space.bind(workload=workload, current=own)
    assert own in bound
    assert bound.size() > 1
    assert write_config(user, space, own) == user


def test_init_redirects_the_outputs_of_profiling_launches() -> None:
    user = launch("--job.config_file llama.toml", "torchtitan.train", is_module=True)
    space = parse_space(starter_space(user, ""), where="x.toml")
    assert space.tune.files == {"--job.config_file": {("job", "dump_folder"): "{scratch}/{launch_id}"}}
    assert unredirected_outputs(user, space) == ()
    filled = change_for_profiling(user, space, {"scratch": "/s", "launch_id": "l"})
    (patch,) = patches_of(filled)
    assert patch.values == ((("job", "dump_folder"), "/s/l"),)


class TestAnyScript:
    FILE = """\
model: {n_layer: 4, hidden_size: 64} # of ours
train:
  batch_size: 4
  grad_accum: 8
  gradient_checkpointing: false
  output_dir: /data/out
  save: true
  save_strategy: epoch
  logging_steps: 10
  resume_from: /data/last.pt
sharding_strategy: [FULL_SHARD, FULL_SHARD, NO_SHARD, FULL_SHARD]
"""

    @pytest.mark.parametrize(
        ("command", "env", "place"),
        [
            ("--config any.yaml --lr 1", {}, "--config"),
            ("--config=any.yaml --lr 1", {}, "--config"),
            ("run any.yaml", {}, "any.yaml"),
            ("config=any.yaml", {}, "config="),
            ("--lr 1", {"CONFIG": "any.yaml"}, "$CONFIG"),
        ],
        ids=["flag", "joined", "path", "key", "variable"],
    )
    def test_init_proposes_what_its_config_file_says(
        self, folder: Path, command: str, env: dict[str, str], place: str
    ) -> None:
        (folder / "any.yaml").write_text(self.FILE)
        user = Launch(program="train.py", script_args=tuple(command.split()), env=env, world_size=2)
        text = starter_space(user, "")
        space = parse_space(text, where="x.toml")
        workload, own = read_config(user, space)
        assert (workload["n_layers"], workload["d_model"]) == (4, 64)
        assert own == {
            "micro_batch_size": 4,
            "gradient_accumulation_steps": 8,
            "sharding_strategy": ("FULL_SHARD", "FULL_SHARD", "NO_SHARD", "FULL_SHARD"),
            "activation_checkpointing": False,
        }
        assert {item.binding.file for item in space.parameters} == {place}
        bound = space.bind(workload=workload, current=own)
        assert own in bound
        assert write_config(user, space, own) == user
        assert space.tune.files == {place: {("train", "output_dir"): "{scratch}/{launch_id}"}}
        assert unredirected_outputs(user, space) == ()
        bare = replace(space, tune=TuneChanges())
        assert unredirected_outputs(user, bare) == (f"train.output_dir in {place}",)
        filled = change_for_profiling(user, space, {"scratch": "/scratch", "launch_id": "l1"})
        assert read_config(filled, space)[1] == own
        (patch,) = patches_of(filled)
        assert patch.values == ((("train", "output_dir"), "/scratch/l1"),)
        both = patches_of(change_for_profiling(write_config(user, space, {**own, "micro_batch_size": 2}), space, {}))
        assert {key for key, _ in both[0].values} == {("train", "output_dir"), ("train", "batch_size")}

    def test_a_flag_comes_before_a_key(self, folder: Path) -> None:
        (folder / "any.yaml").write_text(self.FILE)
        text = starter_space(launch("--batch_size 2 --grad_accum 4 --config any.yaml"), "")
        assert 'flag = "--batch_size"' in text
        assert "train.batch_size" not in text

    @pytest.mark.parametrize("content", ["a: [", "- 1\n- 2\n", "a: &a [*a]", "\x00", ""], ids=repr)
    def test_unreadable_files_are_left_alone(self, folder: Path, content: str) -> None:
        (folder / "any.yaml").write_text(content)
        assert parse_space(starter_space(launch("--config any.yaml"), ""), where="x.toml").parameters


@pytest.mark.parametrize(
    ("enabled", "split", "experts", "degrees"),
    [
        (True, 1, 8, [1, 2, 4, 8]),
        (True, 1, 12, [1, 2, 4]),  # whole experts on each rank
        (False, 1, 12, [1]),  # without AutoEP the degree is idle
        (True, 1, None, [1, 2, 4, 8]),
    ],
)
def test_deepspeed_shares_experts_in_its_file(
    enabled: bool, split: int, experts: int | None, degrees: list[int], folder: Path
) -> None:
    section = {"enabled": enabled, "autoep_size": 1, "expert_tensor_parallel_size": split}
    (folder / "moe.json").write_text(json.dumps(DEEPSPEED | {"expert_parallel": section}))
    command = launch("--deepspeed_config moe.json")
    facts = f"[workload]\nn_experts = {experts}\n" if experts else ""
    space = parse_space(f'trainer = "deepspeed"\n[parameters]\nep_degree = "auto"\n{facts}', where="x.toml")
    workload, current = read_config(command, space)
    bound = with_rule_facts(command, space).bind(workload=workload, current=current)
    legal = [degree for degree in (1, 2, 4, 8) if {"ep_degree": degree} in bound]
    assert legal == degrees
    written = patches_of(write_config(command, space, {"ep_degree": degrees[-1]}))
    expected = {("expert_parallel", "autoep_size"): degrees[-1]} if degrees[-1] > 1 else {}
    assert dict(written[0].values if written else ()) == expected
