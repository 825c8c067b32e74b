"""Space files with random damage: a legal space, or an error that names the place and the rule."""

from __future__ import annotations

import contextlib
import os
import random
import re
import resource
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.errors import CubicMLError, SpaceError
from torchx_cubicml.launch import Launch, read_config, write_config
from torchx_cubicml.space.toml import parse_space

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).parents[3]
COUNT = int(os.environ.get("MUTATED_SPACE_FILES", "3000"))
SEED = int(os.environ.get("MUTATED_SPACE_SEED", "20240901"))
SLOWEST_S = 20.0  # a hang is longer; a loaded machine is not
EVERY_ENTRY = """\
objective = "tokens_per_second"
trainer = "deepspeed"
[workload]
n_layers = { flag = "--n_layer", default = 4 }
seq_len = { file = "--deepspeed_config", key = "data.seq_len" }
device_memory = 80
[parameters]
sharding_strategy = "auto"
overlap_comm = [false, true]
[parameters.micro_batch_size]
choices = [1, 2, 4]
[parameters.nproc_per_node]
low = 1
high = 8
scale = "log2"
torchrun = "--nproc_per_node"
[parameters.layers]
choices = ["FULL_SHARD", "SHARD_GRAD_OP"]
per_layer = "n_layers"
groups = 2
hook = "fsdp"
observe = "sharding_strategy"
[parameters.prefetch]
choices = [0, 1, 2]
file = "conf/*.yaml"
key = "loader.prefetch"
when = "micro_batch_size > 1"
default = 0
[parameters.ratio]
low = 0.1
high = 0.5
step = 0.1
env = "RATIO"
default = 0.1
changes_training = true
[[constraints]]
require = "micro_batch_size * n_layers <= 32 and nproc_per_node in (1, 2, 4, 8)"
[tune]
args = { "--out_dir" = "{scratch}/{launch_id}" }
env = { WANDB_MODE = "disabled" }
files."--deepspeed_config" = { "tensorboard.output_path" = "{scratch}/{launch_id}" }
[rewrite]
min_gain = 0.02
freeze = ["prefetch"]
explore = 0.1
explore_budget_gpu_hours = 4
"""
BASES = [
    EVERY_ENTRY,
    (ROOT / "examples" / "gpt.toml").read_text(),
    *(path.read_text() for path in sorted((ROOT / "tests" / "data" / "spaces").glob("*.toml"))),
]
WORDS = [
    *("1", "0", "-1", "4.5", "1e308", "1e999", "nan", "inf", "true", '"auto"', '"x"', '""', "[]", "[1]", "[[1]]", "{}"),
    *('"--flag"', '"-f"', '"key="', '"$VARIABLE"', '"*.json"', '"a.b.c"', '"--nnodes"', '"fsdp"', '"log2"', '"hf"'),
    *('"micro_batch_size > 1"', '"2 ** 64 ** 64"', '"__import__(1)"', '"n_layers"', '"a" if', "9223372036854775808"),
    *('[1, "a"]', "[1, 1]", "1979-05-27", '"\\u0000"', '"é\\n"', "'''", "9" * 400, '"' + "x" * 5000 + '"', "[" * 300),
    *("choices", "flag", "env", "file", "key", "hook", "torchrun", "derive", "when", "per_layer", "groups", "default"),
    *("[parameters.micro_batch_size]", "[parameters.new]", "[workload]", "[[constraints]]", "[tune]", "[other]", "="),
]
_TOKEN = re.compile(r'"[^"\n]*"|[\w.*-]+|[\[\]{}=,]')


def mutated(rng: random.Random) -> str:
    text = rng.choice(BASES)
    for _ in range(rng.choice([1, 1, 1, 2, 3, 8])):
        text = rng.choice([other_word, other_word, other_lines, other_character])(text, rng)
    return text


def other_word(text: str, rng: random.Random) -> str:
    tokens = list(_TOKEN.finditer(text))
    token = rng.choice(tokens) if tokens else None
    return text if token is None else text[: token.start()] + rng.choice(WORDS) + text[token.end() :]


def other_lines(text: str, rng: random.Random) -> str:
    lines = text.splitlines(keepends=True) or [""]
    at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    changed = {
        "drop": lines[:at] + lines[at + 1 :],
        "double": [*lines[:at], lines[other], *lines[at:]],
        "insert": [*lines[:at], f"{rng.choice(WORDS)} = {rng.choice(WORDS)}\n", *lines[at:]],
    }
    return "".join(changed[rng.choice(list(changed))])


def other_character(text: str, rng: random.Random) -> str:
    at = rng.randrange(len(text) + 1)
    if rng.random() < 0.2:
        return text[:at]
    return text[:at] + rng.choice(['"', "\0", "é", "[", "\n", "", "=", "\ud800"]) + text[at + 1 :]


def check_use(text: str, launch: Launch, folder: Path) -> None:
    """Check that a legal space is one to the end: it binds, counts, draws, and reads a command, or says why not."""
    space = parse_space(text, where=str(folder / "x.toml"))
    with contextlib.suppress(CubicMLError):
        workload, own = read_config(launch, space)
        assert write_config(launch, space, own) == launch
        bound = space.bind(workload=workload, current=own)
        if bound.size(limit=10_000):
            for config in bound.sample(2, rng=np.random.default_rng(0)):
                assert config in bound


def test_the_base_is_legal_and_fits_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    space = parse_space(EVERY_ENTRY, where="x.toml")
    workload, own = read_config(command(tmp_path, monkeypatch), space)
    bound = space.bind(workload=workload, current=own)
    assert own in bound
    assert bound.size() > 10


def command(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Launch:
    (folder / "conf").mkdir()
    (folder / "conf" / "a.yaml").write_text("loader: {prefetch: 1}\n")
    (folder / "ds.json").write_text(
        '{"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 2, "overlap_comm": true}, '
        '"data": {"seq_len": 128}, "gradient_accumulation_steps": 4}'
    )
    monkeypatch.chdir(folder)
    return Launch(
        program="train.py",
        script_args=(
            "--n_layer",
            "4",
            "--deepspeed_config",
            "ds.json",
            "conf/a.yaml",
            "--batch_size",
            "4",
            "--tp",
            "1",
        ),
        world_size=4,
        nnodes=1,
        nproc_per_node=4,
        resizable=frozenset({"nproc_per_node"}),
    )


def test_random_damage_is_reported_or_harmless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(SEED)
    launch, legal = command(tmp_path, monkeypatch), 0
    where = str(tmp_path / "x.toml")
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(COUNT):
        text = mutated(rng)
        start = time.process_time()
        try:
            check_use(text, launch, tmp_path)
            legal += 1
        except SpaceError as error:
            message = str(error)
            assert message.startswith(where), (message, text)
            rule = message.removeprefix(where).strip(": ")
            assert len(rule) > 10, (message, text)
            assert "\n" not in message, (message, text)
        assert time.process_time() - start < SLOWEST_S, text
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
    assert grown_kib < 512 * 1024
    print(f"{legal} of {COUNT} legal, {grown_kib / 1024:.0f} MiB more")
    assert 0.02 * COUNT < legal < 0.98 * COUNT
