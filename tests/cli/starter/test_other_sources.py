"""Values that a command takes from other places than its flags: files of arguments or keys, and variables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from torchx_cubicml.cli.starter import starter_space
from torchx_cubicml.launch import Launch, read_config
from torchx_cubicml.space.toml import parse_space

ARGPARSE = """
import argparse
parser = argparse.ArgumentParser(fromfile_prefix_chars="+")
parser.add_argument("--batch-size", type=int, default=4)
parser.add_argument("--accum", type=int, default=2)
"""
HELP = """options:
  --batch-size N  samples (default: 4)
  --accum N       steps (default: 2)
"""


@pytest.mark.parametrize(
    ("source", "file", "word", "expected"),
    [
        (ARGPARSE, ("more.txt", "--accum=8\n--batch-size\n16\n"), "+more.txt", {"micro_batch_size": 16}),
        (ARGPARSE, ("more.txt", ""), "+absent.txt", {}),
        (ARGPARSE + "import os\nBATCH = os.getenv('BATCH_SIZE')\n", ("none", ""), "-v", {}),
        ("import absl.flags\n", ("flags.cfg", "--batch-size=16\n"), "--flagfile=flags.cfg", {}),
        ("import absl.flags\n", ("flags.cfg", "--batch-size=16\n"), "-v", {"micro_batch_size": 4}),
    ],
    ids=["argument file", "an absent one", "variable", "flag file", "defaults"],
)
def test_a_value_of_another_source_is_read_or_left_open(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    file: tuple[str, str],
    word: str,
    expected: dict[str, int],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(source)
    Path(file[0]).write_text(file[1])
    launch = Launch(program="train.py", script_args=(word,), world_size=1)
    text = starter_space(launch, HELP)
    found = {item.name: item.default for item in parse_space(text, where="starter").parameters}
    assert {name: value for name, value in found.items() if name == "micro_batch_size"} == expected


def test_a_config_file_counts_for_more_than_the_defaults_of_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("from jsonargparse import ArgumentParser\n")
    Path("run.json").write_text('{"batch_size": 16, "accum": 1}')
    launch = Launch(program="train.py", script_args=("--cfg", "run.json"), world_size=1)
    space = parse_space(starter_space(launch, HELP), where="starter")
    assert read_config(launch, space)[1] == {"micro_batch_size": 16, "gradient_accumulation_steps": 1}
    typed = replace(launch, script_args=("--cfg", "run.json", "--batch-size", "8", "--accum", "3"))
    space = parse_space(starter_space(typed, HELP), where="starter")
    assert read_config(typed, space)[1] == {"micro_batch_size": 8, "gradient_accumulation_steps": 3}


def test_a_variable_that_a_parser_may_read_leaves_the_flag_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("from jsonargparse import ArgumentParser\nparser = ArgumentParser(default_env=True)\n")
    launch = Launch(program="train.py", world_size=1)
    assert "[parameters.micro_batch_size]" in starter_space(launch, HELP)
    assert "[parameters.micro_batch_size]" not in starter_space(replace(launch, env={"APP_BATCH_SIZE": "8"}), HELP)


def test_a_name_with_a_dot_in_a_config_file_is_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("import torch\n")
    Path("run.json").write_text('{"a.batch_size": 4, "b": {"batch_size": 8, "accum": 2}, "sizes": [1, {"n": 2}]}')
    launch = Launch(program="train.py", script_args=("--cfg", "run.json"), world_size=1)
    space = parse_space(starter_space(launch, ""), where="starter")
    assert [item.binding.key for item in space.parameters if item.binding] == [("b", "batch_size"), ("b", "accum")]
    assert read_config(launch, space)[1] == {"micro_batch_size": 8, "gradient_accumulation_steps": 2}
