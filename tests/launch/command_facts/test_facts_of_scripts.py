"""Facts of scripts without a known trainer, and of nanoGPT: from flags, files and defaults in the source."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.launch.command_facts.command_facts import facts_of_command
from torchx_cubicml.launch.launch import Launch
from torchx_cubicml.launch.source_files import source_files

if TYPE_CHECKING:
    from torchx_cubicml.launch.command_facts.known_facts import CommandFacts

SCRIPT = """
import argparse
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel

WIDTH = 64
parser = argparse.ArgumentParser()
add = parser.add_argument
add("--n-layer", "-l", type=int, default=2)
add("--n-embd", type=int, default=2 * WIDTH)
add("--batch-size", type=int, default=8)
add("--precision", choices=("fp32", "bf16"), default="fp32")
add("--recompute", action="store_true")
args = parser.parse_args()
model = DistributedDataParallel(build(args))
"""
NANOGPT = """
gradient_accumulation_steps = 5 * 8
batch_size = 12
block_size = 1024
n_layer = 12
n_head = 12
n_embd = 768
device = 'cuda'
exec(open('configurator.py').read())
"""


def facts(script: Path, *words: str, world: int = 2, **more: object) -> CommandFacts:
    launch = Launch(program=str(script), script_args=words, world_size=world, scheduler="local_cwd")
    return facts_of_command(launch, **more)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def test_typed_values_win_over_defaults(script: Path) -> None:
    found = facts(script, "--n_layer=6", "--precision", "bf16")
    expected = {"n_layers": 6, "d_model": 128, "micro_batch_size": 8, "precision": "bf16", "sharding_strategy": "DDP"}
    assert {name: found.facts[name] for name in expected} == expected
    assert found.sources["n_layers"] == "--n_layer"
    assert found.sources["d_model"] == "default in train.py"
    assert "sharding_strategy" in found.assumed
    assert "n_layers" not in found.assumed
    assert {"vocab_size", "seq_len", "device"} <= {*found.unknown}


def test_stated_facts_win_over_the_command(script: Path) -> None:
    found = facts(script, "--n_layer=6", stated={"n_layers": 3}, device="H100")
    assert (found.facts["n_layers"], found.sources["n_layers"]) == (3, "--fact")
    assert (found.facts["device"], found.sources["device"]) == ("H100", "--device")


def test_config_file_counts_more_than_the_source_and_less_than_a_flag(script: Path, tmp_path: Path) -> None:
    config = tmp_path / "sizes.yaml"
    config.write_text("model:\n  n_layer: 9\n  n_embd: 256\n")
    found = facts(script, "--config", str(config), "--n-layer", "4")
    assert (found.facts["n_layers"], found.facts["d_model"]) == (4, 256)
    assert found.sources["d_model"] == f"model.n_embd in {config}"


def test_two_values_of_one_fact_tell_nothing(script: Path) -> None:
    found = facts(script, "encoder.hidden_size=64", "decoder.hidden_size=128")
    assert found.facts.get("d_model") in {None, 128}
    assert found.sources.get("d_model") != "decoder.hidden_size"


def test_nanogpt_counts_accumulation_over_all_ranks(tmp_path: Path) -> None:
    script, config = tmp_path / "train.py", tmp_path / "small.py"
    script.write_text(NANOGPT)
    config.write_text("n_layer = 6\nn_embd = 384\nbatch_size = 64\n")
    found = facts(script, str(config), "--batch_size=8", "--device=cpu", world=4)
    expected = {"n_layers": 6, "d_model": 384, "micro_batch_size": 8, "gradient_accumulation_steps": 10}
    assert {name: found.facts[name] for name in expected} == expected
    assert (found.facts["device"], found.facts["precision"]) == ("cpu", "fp32")


def test_a_later_file_wins_over_an_earlier_flag(tmp_path: Path) -> None:
    script, config = tmp_path / "train.py", tmp_path / "small.py"
    script.write_text(NANOGPT)
    config.write_text("batch_size = 64\n")
    assert facts(script, "--batch_size=8", str(config)).facts["micro_batch_size"] == 64


def test_sizes_in_calls_and_fields(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    (tmp_path / "model.py").write_text(
        "class ModelArgs:\n    dim: int = 16\n    n_heads: int = 4\n    max_seq_len: int = 99\n"
    )
    script.write_text(
        "from model import ModelArgs\n"
        "def main():\n    batch_size = 32\n    words = 1024\n"
        "    args = ModelArgs(n_layers=10, vocab_size=words, max_seq_len=64)\nmain()\n"
    )
    found = facts(script)
    expected = {"n_layers": 10, "vocab_size": 1024, "micro_batch_size": 32, "d_model": 16}
    assert {name: found.facts[name] for name in expected} == expected
    assert found.assumed >= {"d_model"}
    assert "seq_len" in found.unknown


def test_an_unreadable_program_leaves_all_unknown() -> None:
    found = facts(Path("nowhere.py"))
    assert dict(found.facts) == {"world_size": 2}
    assert "n_layers" in found.unknown
    assert "sharding_strategy" in found.unknown


def test_config_of_hydra(tmp_path: Path) -> None:
    script = tmp_path / "main.py"
    (tmp_path / "sizes.yaml").write_text("model:\n  n_layer: 8\n  n_embd: 512\ntrainer:\n  batch_size: 16\n")
    script.write_text(
        "import hydra\n@hydra.main(version_base=None, config_path='.', config_name='sizes')\n"
        "def main(cfg):\n    pass\nmain()\n"
    )
    found = facts(script, "trainer.batch_size=4")
    expected = {"n_layers": 8, "d_model": 512, "micro_batch_size": 4}
    assert {name: found.facts[name] for name in expected} == expected
    assert found.sources["n_layers"] == f"model.n_layer in {tmp_path / 'sizes.yaml'}"


def test_short_and_abbreviated_flags_win_over_defaults(script: Path) -> None:
    found = facts(script, "-l", "6", "--n-em=256")
    assert (found.facts["n_layers"], found.facts["d_model"]) == (6, 256)
    assert found.sources["n_layers"] == "-l"


def test_defaults_that_are_set_later_are_no_defaults(script: Path) -> None:
    script.write_text(SCRIPT.replace("args = ", "parser.set_defaults(n_layer=4, n_embd=read())\nargs = "))
    found = facts(script)
    assert found.facts["n_layers"] == 4
    assert (found.facts["d_model"], "d_model" in found.assumed) == (64, True)  # the constant, which may not be it


def test_parallelism_that_only_the_source_shows_is_unknown(script: Path) -> None:
    assert "tp_degree" not in facts(script).unknown
    script.write_text(f"{SCRIPT}parallelize_module(model, mesh, plan)\n")
    assert "tp_degree" in facts(script).unknown
    assert "tp_degree" not in facts(script, "--tp_degree", "2").unknown


def test_source_is_read_up_to_a_limit(script: Path) -> None:
    rows = "rows = [" + "0, " * 300_000 + "]\n"
    names = [f"part_{index}" for index in range(6)]
    for name in names:
        script.with_name(f"{name}.py").write_text(rows)
    script.write_text("".join(f"import {name}\n" for name in names) + SCRIPT)
    read = [file.path.stem for file in source_files(Launch(program=str(script))) if file.tree is not None]
    assert read == ["train", *names[:3]]
