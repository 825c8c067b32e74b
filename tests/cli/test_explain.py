"""``explain`` tells what a command needs before it is launched, and says what it does not know."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from torchx_cubicml.cli import explain
from torchx_cubicml.errors import LaunchError
from torchx_cubicml.records.arguments import KEY_ID, digested_arguments, text_digest
from torchx_cubicml.records.trial import Trial
from torchx_cubicml.store import TrialStore
from torchx_cubicml.store.digest_key import made_digest_key

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """
import argparse
import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

class GPT(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.words, self.positions = nn.Embedding(args.vocab_size, args.n_embd), nn.Embedding(args.seq_len, args.n_embd)
        self.blocks = nn.ModuleList(Block(args.n_embd) for _ in range(args.n_layer))
        self.head = nn.Linear(args.n_embd, args.vocab_size, bias=False)

parser = argparse.ArgumentParser()
parser.add_argument("--n_layer", type=int, default=12)
parser.add_argument("--n_head", type=int, default=12)
parser.add_argument("--n_embd", type=int, default=768)
parser.add_argument("--vocab_size", type=int, default=32000)
parser.add_argument("--seq_len", type=int, default=1024)
parser.add_argument("--batch_size", type=int, default=8)
parser.add_argument("--precision", choices=("fp32", "bf16"), default="bf16")
args = parser.parse_args()
model = GPT(args)
if __name__ == "__main__":
    model = DistributedDataParallel(model)
"""
COMMAND = ("dist.ddp", "-j", "1x8", "--script", "train.py", "--")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def run(*words: str, options: tuple[str, ...] = ("--device", "H100")) -> None:
    parser = argparse.ArgumentParser()
    explain.add_arguments(parser)
    assert explain.run(parser.parse_args([*options, "-s", "local_cwd", "--", *words])) == 0


def found(capsys: pytest.CaptureFixture[str], *words: str, options: tuple[str, ...] = ()) -> dict[str, Any]:
    run(*words, options=("--device", "H100", "--json", *options))
    table: dict[str, Any] = json.loads(capsys.readouterr().out)
    return table


def real_parameters(folder: Path, *words: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the parameters that torch itself counts in the script's model."""
    monkeypatch.setattr("sys.argv", ["train.py", *words])
    names: dict[str, Any] = {"__name__": "model"}
    exec((folder / "train.py").read_text(), names)
    assert isinstance(names["model"], torch.nn.Module)
    return sum(each.numel() for each in names["model"].parameters())


def test_numbers_have_intervals_and_a_basis(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = found(capsys, *COMMAND, "--n_layer", "16")
    n_params = real_parameters(folder, "--n_layer", "16", monkeypatch=monkeypatch)
    assert (table["parameters"]["low"], table["parameters"]["high"]) == (n_params, n_params)
    for name in ("peak_gib", "step_s", "throughput", "mfu"):
        number = table[name]
        assert 0.0 < number["low"] < number["middle"] < number["high"]
        assert "public sources" in number["basis"]
    assert sum(table["memory_gib"].values()) == pytest.approx(table["peak_gib"]["middle"])
    assert sum(table["seconds"].values()) == pytest.approx(table["step_s"]["middle"])
    tokens = 8 * 8 * 1024
    assert table["throughput"]["middle"] == pytest.approx(tokens / table["step_s"]["middle"])
    assert table["device_gib"] == pytest.approx(80e9 / 2**30)
    assert 0.9 < table["fits"] <= 1.0
    assert table["bound"]
    assert 1 <= len(table["changes"]) <= 3
    assert table["known"]["n_layers"] == {"value": 16, "source": "--n_layer", "assumed": False}


def test_a_model_that_is_too_large_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    table = found(capsys, *COMMAND, "--n_layer", "48", "--n_embd", "8192", "--n_head", "64")
    assert table["fits"] < 0.01
    best = table["changes"][0]
    assert best["peak_gib"]["middle"] < table["peak_gib"]["middle"]
    assert best["after"] == {"sharding_strategy": "FULL_SHARD"}


def test_text_names_sources_and_what_is_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    run(*COMMAND, "--n_layer", "16", options=("--device", "H100", "--fact", "gradient_accumulation_steps=2"))
    text = capsys.readouterr().out
    for part in (
        "n_layers                     16  (--n_layer)",
        "gradient_accumulation_steps  2  (--fact)",
        "d_model                      768  (default in train.py)",
        "Parameters: ",
        "80 % interval",
        "It runs into: ",
        "Changes that would tell most:",
    ):
        assert part in text


def test_a_step_that_nothing_measured_tells_of_is_not_told(capsys: pytest.CaptureFixture[str]) -> None:
    table = found(capsys, *COMMAND, options=("--device", "cpu"))
    assert [table[name] for name in ("step_s", "throughput", "mfu", "seconds", "bound")] == [None, None, None, {}, ""]
    assert "no launch on such a device is recorded" in table["why_no_step"]
    assert table["peak_gib"] is not None
    assert table["changes"]
    run(*COMMAND, options=("--device", "cpu"))
    text = capsys.readouterr().out.replace("\n    ", " ")
    assert "Time of a step: not told, for its 80 % interval would span a factor of " in text


def test_missing_sizes_are_named_and_nothing_is_made_up(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "train.py").write_text("print('train')\n")
    table = found(capsys, *COMMAND)
    assert {"n_layers", "d_model", "seq_len", "micro_batch_size"} <= table["unknown"].keys()
    assert (table["parameters"], table["peak_gib"], table["step_s"], table["fits"]) == (None, None, None, None)
    run(*COMMAND)
    text = capsys.readouterr().out
    assert "Parameters: not known." in text
    assert "n_layers: no forecast of time and memory without it" in text


def test_unknown_facts_widen_the_interval(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known = found(capsys, *COMMAND)
    script = SCRIPT.replace('parser.add_argument("--precision", choices=("fp32", "bf16"), default="bf16")', "")
    (folder / "train.py").write_text(f"{script}torch.autocast('cuda')\n")
    unknown = found(capsys, *COMMAND)
    assert "precision" in unknown["unknown"]
    ratios = [table["step_s"]["high"] / table["step_s"]["low"] for table in (known, unknown)]
    assert ratios[1] > ratios[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [("n_layers", "must be NAME=VALUE"), ("colour=1", "must be NAME=VALUE"), ("n_layers=many", "no legal value")]
    + [(f"n_layers={value}", "no legal value") for value in ("nan", "inf", "0.5", "-1", "1e300")],
)
def test_illegal_facts_are_refused(text: str, message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        run(*COMMAND, options=("--fact", text))


def test_own_launches_count_more_than_formulas(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = str(folder / "store")
    key = made_digest_key(url)
    table = found(capsys, *COMMAND)
    slow = table["throughput"]["middle"] / 3.0
    facts = {name: each["value"] for name, each in table["known"].items()}
    for layers, rate in ((8, 1.5 * slow), (10, 1.2 * slow), (14, slow / 1.15), (16, slow / 1.3)):
        words = ("--n_layer", str(layers))
        trial = Trial.completed(
            workload={"program": "train.py", "world_size": 8, "device": "NVIDIA H100 80GB HBM3"},
            config={},
            tokens_per_second=rate,
        )
        trial = replace(
            trial,
            observed={**facts, "n_layers": layers},
            arguments=digested_arguments(words, key),
            digests={KEY_ID: text_digest("", key)},
        )
        TrialStore(url).add(trial)
    after = found(capsys, *COMMAND, options=("--store", url))
    assert after["throughput"]["basis"] == "formulas calibrated on 4 launches of this program"
    assert after["throughput"]["low"] < slow < after["throughput"]["high"]
    assert after["throughput"]["middle"] == pytest.approx(slow, rel=0.3)


def test_space_file_names_the_changes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    space = folder / "space.toml"
    space.write_text("[parameters.micro_batch_size]\nchoices = [4, 8, 16, 32]\nflag = '--batch_size'\n")
    table = found(capsys, *COMMAND, "--batch_size", "8", options=("--space", str(space)))
    assert {each["after"]["micro_batch_size"] for each in table["changes"]} <= {4, 16, 32}
    assert all(each["before"] == {"micro_batch_size": 8} for each in table["changes"])


def test_command_of_torchrun(capsys: pytest.CaptureFixture[str]) -> None:
    table = found(capsys, "torchrun", "--nproc_per_node", "4", "train.py", "--n_layer", "3")
    assert (table["known"]["world_size"]["value"], table["known"]["n_layers"]["value"]) == (4, 3)


def test_nothing_of_the_program_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "train.py").write_text(f"open({str(folder / 'ran')!r}, 'w')\n{SCRIPT}")
    found(capsys, *COMMAND)
    assert not (folder / "ran").exists()


def test_lines_fit_a_page(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    run(*COMMAND, "--n_layer", "16")
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    assert not any(line.strip().startswith(("%", "GiB")) for line in lines)


@pytest.mark.parametrize("text", [None, "def f(:", "x\0", "# -*- coding: nowhere -*-"])
def test_source_that_cannot_be_read_is_named(
    text: str | None, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "train.py").unlink()
    if text is not None:
        (folder / "train.py").write_text(text)
    run(*COMMAND, "--n_layer", "16")
    assert "The source of train.py cannot be read here" in capsys.readouterr().out
    assert found(capsys, *COMMAND)["unread"] == "train.py"


def test_links_in_a_circle_end(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "train.py").unlink()
    (folder / "train.py").symlink_to("other.py")
    (folder / "other.py").symlink_to("train.py")
    assert found(capsys, *COMMAND)["unread"] == "train.py"
