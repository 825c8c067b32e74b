"""What the commands show of a frontier: ``history frontier``, ``suggest --frontier`` and their JSON."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.cli import history, suggest
from torchx_cubicml.cli.frontier_table import CHOSEN_ONCE
from torchx_cubicml.errors import LaunchError, StoreError
from torchx_cubicml.launch import ComponentLaunch, read_config
from torchx_cubicml.records.trial import Trial
from torchx_cubicml.space.toml import load_space
from torchx_cubicml.store import TrialStore

if TYPE_CHECKING:
    from pathlib import Path

SPACE = """
objective = ["tokens_per_second", "tokens_per_currency"]
[prices]
partition = { fast = 4.0, slow = 1.0 }
[parameters.partition]
choices = ["fast", "slow"]
scheduler = "partition"
[parameters.batch]
choices = [1, 2, 4]
flag = "--batch"
changes_training = true
"""
COMMAND = ("dist.ddp", "-j", "1x2", "--script", "train.py", "--", "--batch", "1")


def shown(module: object, words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)  # type: ignore[attr-defined]  # each command has it
    assert module.run(parser.parse_args(words)) == 0  # type: ignore[attr-defined]  # each command has it
    return capsys.readouterr().out


def test_history_compares_launches_of_any_number_of_processes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = TrialStore(str(tmp_path))
    rows = [(1, 1, 100.0), (1, 2, 90.0), (4, 1, 250.0), (4, 2, 250.0), (4, 2, 330.0), (8, 1, 300.0)]
    for world_size, batch, rate in rows:
        workload = {"program": "train.py", "world_size": world_size}
        store.add(Trial.completed(workload=workload, config={"batch": batch}, tokens_per_second=rate))
    store.add(Trial.completed(workload={"program": "other.py"}, config={"batch": 1}, tokens_per_second=1.0))
    words = ["frontier", "--store", str(tmp_path)]
    (found,) = json.loads(shown(history, [*words, "--json"], capsys))
    assert found["workload"] == {"program": "train.py"}
    points = [(each["config"]["world_size"], each["config"]["batch"], each["launches"]) for each in found["points"]]
    assert points == [(8, 1, 1), (4, 2, 2), (1, 1, 1)]
    assert found["points"][2]["values"] == {
        "tokens_per_second": pytest.approx(100.0),
        "tokens_per_device_hour": pytest.approx(360_000.0),
    }
    text = shown(history, words, capsys)
    assert "360,000" in text
    assert CHOSEN_ONCE in text
    assert "different global batch sizes" not in text
    for world_size, rate in ((16, 400.0), (2, 200.0)):
        done = Trial.completed(workload={**workload, "world_size": world_size}, config={}, tokens_per_second=rate)
        store.add(replace(done, observed={"global_batch_size": 8 * world_size}))
    assert "They train with different global batch sizes: 16, 128." in " ".join(shown(history, words, capsys).split())


def test_launches_without_a_space_file_are_repeats_only_if_they_look_alike(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workload = {"program": "train.py", "world_size": 2}
    for batch, rate in ((1, 100.0), (4, 200.0), (4, 200.0)):
        plain = Trial.completed(workload=workload, config={}, tokens_per_second=rate)
        TrialStore(str(tmp_path)).add(replace(plain, observed={"micro_batch_size": batch}))
    (found,) = json.loads(shown(history, ["frontier", "--store", str(tmp_path), "--json"], capsys))
    points = [(each["config"], each["launches"]) for each in found["points"]]
    assert points == [({"micro_batch_size": 4, "world_size": 2}, 2)]


@pytest.mark.parametrize(
    "named",
    ["tokens_per_second", "tokens_per_second,tokens_per_second", "a,b", "tokens_per_second,tokens_per_currency"],
)
def test_history_takes_two_objectives_that_a_store_tells(named: str, tmp_path: Path) -> None:
    TrialStore(str(tmp_path)).add(Trial.completed(workload={}, config={"batch": 1}, tokens_per_second=1.0))
    parser = argparse.ArgumentParser()
    history.add_arguments(parser)
    with pytest.raises(StoreError, match="--objectives must be two of tokens_per_second"):
        history.run(parser.parse_args(["frontier", "--store", str(tmp_path), "--objectives", named]))
    with pytest.raises(StoreError, match=r"no trial of store .* has both"):
        history.run(parser.parse_args(["frontier", "--store", str(tmp_path)]))


def test_suggest_shows_measured_and_predicted_configs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    space, url = tmp_path / "space.toml", str(tmp_path / "store")
    space.write_text(SPACE)
    typed = ComponentLaunch.parse(COMMAND[0], COMMAND[1:]).launch
    launch = replace(typed, scheduler="slurm", scheduler_options={"partition": "slow"})
    workload, config = read_config(launch, load_space(str(space)))
    for partition, batch, rate in (("slow", 1, 100.0), ("slow", 2, 140.0), ("fast", 1, 200.0), ("fast", 2, 280.0)):
        changed = {**config, "partition": partition, "batch": batch}
        TrialStore(url).add(Trial.completed(workload=workload, config=changed, tokens_per_second=rate))
    options = ["--space", str(space), "--store", url, "-s", "slurm", "-cfg", "partition=slow", "--frontier"]
    found = json.loads(shown(suggest, [*options, "--json", "--", *COMMAND], capsys))
    assert found["objectives"] == ["tokens_per_second", "tokens_per_currency"]
    kinds = {(each["config"]["partition"], each["config"]["batch"]): each["launches"] for each in found["points"]}
    assert set(kinds) >= {("slow", 1)}  # the own one
    assert {key for key, launches in kinds.items() if not launches} <= {("slow", 4), ("fast", 4)}
    own = next(each for each in found["points"] if each["is_own"])
    assert own["values"]["tokens_per_currency"] == pytest.approx(100.0 * 3600 / 2)
    assert own["ratios"] == [1.0, 1.0]
    text = shown(suggest, [*options, "--", *COMMAND], capsys)
    assert "your own config" in text
    for partition in ("slow", "fast"):
        changed = {**config, "partition": partition, "batch": 4}
        TrialStore(url).add(Trial.completed(workload=workload, config=changed, tokens_per_second=300.0))
    tried = json.loads(shown(suggest, [*options, "--json", "--", *COMMAND], capsys))  # all configs
    assert all(each["launches"] == 1 for each in tried["points"])
    assert ("predicted" in text) == (0 in kinds.values())
    space.write_text(SPACE.replace('["tokens_per_second", "tokens_per_currency"]', '"tokens_per_second"'))
    with pytest.raises(LaunchError, match="--frontier needs two objectives"):
        shown(suggest, [*options, "--", *COMMAND], capsys)


def test_launches_on_another_device_are_no_points_of_a_frontier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    space, url = tmp_path / "space.toml", str(tmp_path / "store")
    space.write_text(
        'objective = ["tokens_per_second", "tokens_per_device_hour"]\n'
        "[parameters.batch]\nchoices = [1, 2, 4]\nflag = '--batch'\nchanges_training = true\n"
    )
    workload, config = read_config(ComponentLaunch.parse(COMMAND[0], COMMAND[1:]).launch, load_space(str(space)))
    for day, batch, device, rate in ((1, 4, "A100", 900.0), (2, 1, "H100", 100.0), (3, 2, "H100", 140.0)):
        done = Trial.completed(workload=workload, config={**config, "batch": batch}, tokens_per_second=rate)
        TrialStore(url).add(replace(done, observed={"device": device}, ended_at=f"2026-01-0{day}T00:00:00+00:00"))
    options = ["--space", str(space), "--store", url, "-s", "slurm", "--frontier"]
    found = json.loads(shown(suggest, [*options, "--json", "--", *COMMAND], capsys))
    assert (4, 1) not in [(each["config"]["batch"], each["launches"]) for each in found["points"]]
    text = shown(suggest, [*options, "--", *COMMAND], capsys)
    assert "1 launch left out: the latest had device H100, not A100" in " ".join(text.split())
