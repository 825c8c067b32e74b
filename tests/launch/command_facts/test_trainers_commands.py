"""Commands of known trainers tell their models: parameters are those that the trainers themselves build."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.launch.command_facts.command_facts import facts_of_command
from torchx_cubicml.launch.command_facts.parameter_formula import parameter_range
from torchx_cubicml.launch.launch import Launch

if TYPE_CHECKING:
    from pathlib import Path

    from torchx_cubicml.launch.command_facts.known_facts import CommandFacts

MEGATRON = (
    "--num-layers 3 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32 "
    "--micro-batch-size 1 --global-batch-size 8 "
)
# Parameters of Megatron-Core's GPTModel with these options, as it was built (release 0.16.1).
MEGATRON_PARAMETERS = {
    "--vocab-size 128": 160_320,
    "--vocab-size 250 --swiglu --disable-bias-linear --normalization RMSNorm --position-embedding-type rope "
    "--untie-embeddings-and-output-weights --ffn-hidden-size 128": 156_096,
    "--vocab-size 128 --group-query-attention --num-query-groups 2": 147_840,
    "--vocab-size 100 --num-experts 4 --disable-bias-linear": 454_272,
    "--vocab-size 128 --kv-channels 32": 210_048,
}
# Parameters of the models of transformers 5.24 by their default configs, and of published ones.
HUGGING_FACE_PARAMETERS = {
    "gpt2": 124_439_808,
    "opt": 125_239_296,
    "gpt_neox": 20_554_567_680,
    "llama": 6_738_415_616,
    "mistral": 7_241_732_096,
    "mixtral": 46_702_792_704,
    "qwen2": 12_049_846_272,
}
PUBLISHED_PARAMETERS = {
    "meta-llama/Llama-3.1-8B": 8_030_261_248,
    "meta-llama/Llama-3.2-1B": 1_235_814_400,
    "gpt2-xl": 1_557_611_200,
    "mistralai/Mistral-7B-v0.1": 7_241_732_096,
    "Qwen/Qwen2.5-0.5B": 494_032_768,
}


def facts(program: str, words: str, *, world: int = 8, is_module: bool = False, **more: str) -> CommandFacts:
    launch = Launch(
        program=program, is_module=is_module, script_args=tuple(words.split()), world_size=world, scheduler="local_cwd"
    )
    return facts_of_command(launch, **more)


@pytest.mark.parametrize("words", MEGATRON_PARAMETERS)
def test_parameters_of_megatron_lm(words: str) -> None:
    n_params = MEGATRON_PARAMETERS[words]
    assert parameter_range(facts("pretrain_gpt.py", MEGATRON + words).facts) == (n_params, n_params)


@pytest.mark.parametrize(
    ("line", "is_own"),
    [
        ("from megatron.training import pretrain", False),
        ("import megatron.training.arguments as a", False),
        ("from megatron import get_args", False),
        ("from megatron.core.models.gpt import GPTModel", True),
        ("import megatron_notes", True),
    ],
)
def test_a_program_that_parses_flags_of_megatron_lm_itself_has_none_of_its_defaults(
    tmp_path: Path, line: str, is_own: bool
) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"{line}\n")
    found = facts(str(script), f"{MEGATRON} --vocab-size 128").facts
    assert (found["n_layers"], found["d_model"], found["vocab_size"]) == (3, 64, 128)
    assert ("tied_embeddings" not in found) is is_own
    assert ("positions" not in found) is is_own


def test_batch_and_precision_of_megatron_lm() -> None:
    found = facts("pretrain_gpt.py", f"{MEGATRON} --bf16 --use-distributed-optimizer --tensor-model-parallel-size 2")
    expected = {"precision": "bf16", "zero_stage": 1, "tp_degree": 2, "activation_checkpointing": "none", "d_ff": 256}
    assert {name: found.facts[name] for name in expected} == expected
    assert (found.sources["precision"], found.sources["d_ff"]) == ("--bf16", "without --ffn-hidden-size")
    assert found.unknown == ("vocab_size", "device")


@pytest.mark.parametrize("kind", HUGGING_FACE_PARAMETERS)
def test_parameters_of_default_configs(kind: str) -> None:
    found = facts("run_clm.py", f"--model_type {kind} --do_train --output_dir out --block_size 128")
    assert parameter_range(found.facts) == (HUGGING_FACE_PARAMETERS[kind],) * 2
    assert found.facts["seq_len"] == 128


@pytest.mark.parametrize("name", PUBLISHED_PARAMETERS)
def test_parameters_of_published_models(name: str) -> None:
    found = facts("run_clm.py", f"--model_name_or_path {name} --do_train --output_dir out --bf16")
    assert parameter_range(found.facts) == (PUBLISHED_PARAMETERS[name],) * 2
    assert found.sources["n_layers"] == f"published config of {name}, --model_name_or_path"
    assert (found.facts["precision"], found.facts["micro_batch_size"]) == ("bf16", 8)


def test_config_in_the_folder_of_a_model(tmp_path: Path) -> None:
    config = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config |= {"num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 100, "tie_word_embeddings": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = facts("run_clm.py", f"--model_name_or_path {tmp_path} --do_train --output_dir out")
    block = 64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 96 + 2 * 64
    assert parameter_range(found.facts) == (100 * 64 + 2 * block + 64,) * 2


def test_overrides_of_a_config() -> None:
    words = "--model_type gpt2 --config_overrides n_layer=2,n_embd=64,n_head=4,vocab_size=100 --do_train --output_dir o"
    found = facts("run_clm.py", words)
    block = 12 * 64 * 64 + 13 * 64
    assert parameter_range(found.facts) == (100 * 64 + 1024 * 64 + 2 * block + 2 * 64,) * 2


def test_an_unknown_model_tells_nothing() -> None:
    found = facts("run_clm.py", "--model_name_or_path mine/secret --do_train --output_dir out")
    assert {"n_layers", "d_model", "vocab_size"} <= {*found.unknown}


def test_encoder_with_or_without_its_head() -> None:
    found = facts("run.py", "--model_type bert --do_train --output_dir out")
    assert parameter_range(found.facts) == (108_922_170, 109_514_298)


def test_config_class_in_the_source(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "from dataclasses import dataclass, field\n"
        "from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, Trainer, TrainingArguments\n"
        "LENGTH = 32\n"
        "@dataclass\nclass Arguments:\n    n_layer: int = field(default=2)\n    words: int = field(default=128)\n"
        "own, arguments = HfArgumentParser((Arguments, TrainingArguments)).parse_args_into_dataclasses()\n"
        "config = GPT2Config(n_layer=own.n_layer, n_embd=64, n_head=4, vocab_size=own.words, n_positions=LENGTH)\n"
        "Trainer(GPT2LMHeadModel(config), arguments).train()\n"
    )
    found = facts(str(script), "--output_dir out --per_device_train_batch_size 4 --n_layer 3")
    block = 12 * 64 * 64 + 13 * 64
    assert parameter_range(found.facts) == (128 * 64 + 32 * 64 + 3 * block + 2 * 64,) * 2
    assert found.sources["d_model"] == "GPT2Config in train.py"
    assert "seq_len" in found.unknown


TITAN = """
def _small(attn_backend):
    dim = 64
    n_heads = 4
    return Model.Config(
        dim=dim,
        vocab_size=128,
        lm_head=Linear.Config(in_features=dim, out_features=128),
        layers=_layers(
            n_layers=2, dim=dim, n_heads=n_heads, n_kv_heads=2,
            hidden_dim=compute_ffn_hidden_dim(dim, multiple_of=32, ffn_dim_multiplier=1.3),
            rope=RoPE.Config(dim=dim // n_heads),
        ),
    )

llama3_configs = {"small": _small}
"""
TITAN_REGISTRY = """
def llama3_small():
    spec = model_registry("small")
    return Trainer.Config(
        model_spec=spec,
        training=TrainingConfig(local_batch_size=8, seq_len=2048, steps=10),
        activation_checkpoint=SelectiveAC.Config(),
    )

def llama3_small_long():
    config = llama3_small()
    config.training.seq_len = 4096
    return config
"""


def test_registry_of_torchtitan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "torchtitan/models/llama3"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(TITAN)
    (folder / "config_registry.py").write_text(TITAN_REGISTRY)
    monkeypatch.chdir(tmp_path)
    words = "--module llama3 --config llama3_small_long --training.local_batch_size 2"
    found = facts("torchtitan.train", words, is_module=True)
    inner = 32 * -(-int(1.3 * int(8 * 64 / 3)) // 32)
    block = 64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * inner + 2 * 64
    assert parameter_range(found.facts) == (2 * 128 * 64 + 2 * block + 64,) * 2
    expected = {"micro_batch_size": 2, "seq_len": 4096, "gradient_accumulation_steps": 1}
    expected |= {"activation_checkpointing": "selective", "selective_recompute": "op"}
    assert {name: found.facts[name] for name in expected} == expected


def test_config_file_of_an_older_torchtitan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "torchtitan/models/llama3"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(
        "configs = {'1B': TransformerModelArgs(dim=64, n_layers=2, n_heads=4, n_kv_heads=2, multiple_of=8)}\n"
    )
    (tmp_path / "run.toml").write_text(
        "[model]\nname = 'llama3'\nflavor = '1B'\n[training]\nlocal_batch_size = 4\nseq_len = 128\n"
        "mixed_precision_param = 'float32'\n[activation_checkpoint]\nmode = 'full'\n"
    )
    monkeypatch.chdir(tmp_path)
    found = facts("torchtitan.train", "--job.config_file run.toml --training.seq_len 256", is_module=True)
    expected = {"d_model": 64, "n_layers": 2, "n_kv_heads": 2, "micro_batch_size": 4, "seq_len": 256}
    expected |= {"precision": "fp32", "activation_checkpointing": "full"}
    assert {name: found.facts[name] for name in expected} == expected
    assert "d_ff" in found.unknown


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--fp8-format hybrid --bf16", {"precision": "fp8"}),
        ("--transformer-impl local", {"attention_kernel": "math"}),
        ("--transformer-impl local --use-flash-attn", {"attention_kernel": "flash_attention"}),
        ("--attention-backend unfused", {"attention_kernel": "math"}),
        ("--use-torch-fsdp2", {"sharding_strategy": "FULL_SHARD"}),
        ("--swiglu", {"d_ff": 128, "gated_mlp": True}),
        ("--vocab-size 100 --tokenizer-type NullTokenizer", {"vocab_size": 128}),
        ("--vocab-size 128 --tokenizer-type NullTokenizer", {"vocab_size": 256}),
        ("--vocab-size 100 --make-vocab-size-divisible-by 8 --tensor-model-parallel-size 2", {"vocab_size": 112}),
        ("--recompute-granularity full", {"activation_checkpointing": "full"}),
    ],
)
def test_flags_of_megatron_lm(words: str, expected: dict[str, object]) -> None:
    found = facts("pretrain_gpt.py", MEGATRON + words)
    assert {name: found.facts[name] for name in expected} == expected


def test_config_of_deepspeed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 3}, "bf16": {"enabled": true}}')
    words = "--model_name_or_path gpt2 --deepspeed ds.json --output_dir out --per_device_train_batch_size 2"
    found = facts("run_clm.py", f"{words} --gradient_checkpointing")
    expected = {"precision": "bf16", "zero_stage": 3, "micro_batch_size": 2, "activation_checkpointing": "full"}
    assert {name: found.facts[name] for name in expected} == expected


def test_without_torchtitan_its_model_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = facts("torchtitan.train", "--module llama9 --config llama9_debugmodel", is_module=True)
    assert {"n_layers", "d_model", "vocab_size", "micro_batch_size"} <= {*found.unknown}
