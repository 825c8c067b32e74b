"""Arguments in files (``@FILE``) count as argparse reads them; where they are not read, no default counts."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.advisor.command_explanation.explanation import explain_command
from torchx_cubicml.cli.explanation_text import explanation_lines
from torchx_cubicml.launch.command_facts.command_facts import facts_of_command
from torchx_cubicml.launch.launch import Launch

if TYPE_CHECKING:
    from pathlib import Path

PARSER = """
import argparse
from torch import nn
parser = argparse.ArgumentParser(fromfile_prefix_chars="@")
parser.add_argument("--n-layer", type=int, default=2)
parser.add_argument("--n-embd", type=int, default=64)
args = parser.parse_args()
model = nn.Sequential(*[nn.Linear(args.n_embd, args.n_embd) for _ in range(args.n_layer)])
"""
OWN_READER = """
class Parser(argparse.ArgumentParser):
    def convert_arg_line_to_args(self, line):
        return line.split()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(PARSER)
    (tmp_path / "sizes.txt").write_text("--n-layer=6\n@width.txt\n")
    (tmp_path / "width.txt").write_text("--n-embd\n32\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def launch(*words: str) -> Launch:
    return Launch(program="train.py", script_args=words, scheduler="local_cwd", world_size=1)


@pytest.mark.parametrize("words", [("@sizes.txt",), ("@sizes.txt", "--n-layer", "3"), ("--n-layer", "3", "@sizes.txt")])
def test_files_stand_for_their_lines_as_in_argparse(words: tuple[str, ...]) -> None:
    parser = argparse.ArgumentParser(fromfile_prefix_chars="@")
    parser.add_argument("--n-layer", type=int)
    parser.add_argument("--n-embd", type=int)
    real = parser.parse_args(words)
    found = facts_of_command(launch(*words))
    assert (found.facts["n_layers"], found.facts["d_model"]) == (real.n_layer, real.n_embd)
    assert found.facts["n_params"] == real.n_layer * (real.n_embd + 1) * real.n_embd
    assert not found.unread


@pytest.mark.parametrize("case", ["missing", "own_reader", "circle", "folder"])
def test_without_the_words_of_a_file_no_default_counts(case: str, folder: Path) -> None:
    if case == "own_reader":
        (folder / "train.py").write_text(PARSER + OWN_READER)
    elif case == "circle":
        (folder / "width.txt").write_text("@sizes.txt\n")
    else:
        (folder / "width.txt").unlink()
    if case == "folder":
        (folder / "width.txt").mkdir()
    found = facts_of_command(launch("--n-layer", "3", "@sizes.txt", "--n-embd=16"))
    assert "n_layers" not in found.facts
    assert "n_params" not in found.facts
    assert found.facts["d_model"] == 16
    assert found.unread == "@sizes.txt"
    text = "\n".join(explanation_lines(explain_command(found)))
    assert "The arguments in @sizes.txt cannot be read here: defaults and the model are not known." in text


def test_a_program_without_such_files_gets_its_words_as_typed(folder: Path) -> None:
    (folder / "train.py").write_text(PARSER.replace('fromfile_prefix_chars="@"', ""))
    assert facts_of_command(launch("--n-layer", "3", "@sizes.txt")).facts["n_layers"] == 3


def test_files_that_name_one_another_many_times_are_not_read_without_end(folder: Path) -> None:
    for depth in range(5):
        (folder / f"file{depth}.txt").write_text(f"@file{depth + 1}.txt\n" * 2000)  # 2000 ** 4 files in all
    (folder / "file4.txt").write_text("")
    assert facts_of_command(launch("@file0.txt")).unread == "@file0.txt"


@pytest.mark.parametrize(("words", "layers"), [(("--n-layer=6", "--n-layer", "3"), 3), (("--n-layer", "3", "x"), 3)])
def test_the_last_of_a_repeated_flag_counts(words: tuple[str, ...], layers: int) -> None:
    assert facts_of_command(launch(*words)).facts["n_layers"] == layers


def test_a_value_that_is_not_understood_is_no_default() -> None:
    assert "n_layers" not in facts_of_command(launch("--n-layer", "many")).facts
