"""What a tune and ``suggest`` say of a workload before its first launch."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.cli import suggest
from torchx_cubicml.cli.first_launch_lines import first_launch_lines
from torchx_cubicml.records.trial import Trial
from torchx_cubicml.tuner import Budget, TuneRequest, prepare

if TYPE_CHECKING:
    from pathlib import Path

COMMAND = ("dist.ddp", "-j", "1x8", "--script", "train.py", "--", "--batch", "2")
SPACE = """
[workload]
n_layers = 32
d_model = 4096
seq_len = 4096
vocab_size = 32000
sharding_strategy = "FULL_SHARD"
precision = "bf16"
device = "DEVICE"
[parameters.micro_batch_size]
choices = [1, 2]
flag = "--batch"
changes_training = true
"""


def request(folder: Path, device: str) -> TuneRequest:
    space = folder / "space.toml"
    space.write_text(SPACE.replace("DEVICE", device))
    return TuneRequest(
        component=COMMAND[0],
        component_args=COMMAND[1:],
        space=str(space),
        store=str(folder / "store"),
        scheduler="local_cwd",
        budget=Budget(launches=8),
    )


def test_a_tune_says_what_it_expects_before_its_first_launch(tmp_path: Path) -> None:
    prepared = prepare(request(tmp_path, "NVIDIA H100 80GB HBM3"))
    line, held = first_launch_lines(prepared.history([]))
    assert line.startswith(
        "Predicted for your config, from formulas and 7 public sources, no measured launch of yours: "
    )
    assert " tokens/s (80 % interval: " in line
    assert held.startswith("Such intervals held ")
    launched = Trial.completed(workload=prepared.workload, config=prepared.current, tokens_per_second=50_000.0)
    assert first_launch_lines(prepared.history([launched])) == []


def test_a_tune_says_nothing_where_nothing_is_known(tmp_path: Path) -> None:
    assert first_launch_lines(prepare(request(tmp_path, "cpu")).history([])) == []


@pytest.mark.parametrize("device", ["NVIDIA H100 80GB HBM3", "cpu"])
def test_suggest_says_it_in_words_and_as_json(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    space = request(tmp_path, device).space
    parser = argparse.ArgumentParser()
    suggest.add_arguments(parser)
    monkeypatch.setenv("TORCHX_CUBICML_STORE", str(tmp_path / "store"))
    options = ["--space", space, "-s", "local_cwd"]
    assert suggest.run(parser.parse_args([*options, "--json", "--", *COMMAND])) == 0
    found = json.loads(capsys.readouterr().out)["breakdown"]["first_launch"]
    assert suggest.run(parser.parse_args([*options, "--", *COMMAND])) == 0
    words = capsys.readouterr().out
    if device == "cpu":
        assert (found["sources"], found["throughput"]) == ([], {})
        assert (
            "No prediction of your config: you have no measured launch, "
            "and the public sources tell too little of the device cpu." in words
        )
    else:
        low, middle, high = found["throughput"]["your config"]
        assert 0.0 < low < middle < high
        assert len(found["sources"]) == 7
        assert "Predicted for your config, from formulas and 7 public sources, no measured launch of yours: " in words
