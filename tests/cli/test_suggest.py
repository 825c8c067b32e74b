"""``suggest`` learns from launches that did the same work."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import pytest

from torchx_cubicml.cli import suggest
from torchx_cubicml.launch import ComponentLaunch, read_config
from torchx_cubicml.records.arguments import KEY_ID, digested_arguments, text_digest
from torchx_cubicml.records.trial import Trial
from torchx_cubicml.space.toml import load_space
from torchx_cubicml.store import TrialStore, read_trials
from torchx_cubicml.store.digest_key import made_digest_key


@pytest.mark.parametrize(("length", "is_used"), [("512", False), ("2048", True)])
def test_launches_with_another_undeclared_setting_are_left_out(tmp_path: Path, length: str, is_used: bool) -> None:
    space, url = tmp_path / "space.toml", str(tmp_path / "store")
    space.write_text("[parameters.micro_batch_size]\nchoices = [1, 2]\nflag = '--batch'\n")
    words = ("--batch", "1", "--seq_len")
    component = ComponentLaunch.parse("dist.ddp", ("-j", "1x2", "--script", "train.py", "--", *words, "2048"))
    workload, config = read_config(component.launch, load_space(str(space)))
    key = made_digest_key(url)
    trial = replace(
        Trial.completed(workload=workload, config=config, tokens_per_second=9.0),
        arguments=digested_arguments((*words, length), key),
        digests={KEY_ID: text_digest("", key)},
    )
    TrialStore(url).add(trial)
    args = argparse.Namespace(space=str(space), store=url)
    found = suggest._read_history(component.launch, args, read_trials(url, deadline_s=60.0)[0])
    assert [each.trial_id for each in found.trials] == ([trial.trial_id] if is_used else [])


def test_the_scheduler_is_that_of_the_latest_launch_of_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCHXCONFIG", str(tmp_path / "config"))
    (tmp_path / "config").touch()
    space, url = tmp_path / "space.toml", str(tmp_path / "store")
    space.write_text("[parameters.micro_batch_size]\nchoices = [1, 2]\nflag = '--batch'\n")
    command = ("dist.ddp", "-j", "1x2", "--script", "train.py", "--", "--batch", "1")
    workload, config = read_config(ComponentLaunch.parse(command[0], command[1:]).launch, load_space(str(space)))
    trial = Trial.completed(workload=workload, config=config, tokens_per_second=9.0)
    TrialStore(url).add(replace(trial, observed={"scheduler": "local_cwd"}))
    parser = argparse.ArgumentParser()
    suggest.add_arguments(parser)
    assert suggest.run(parser.parse_args(["--space", str(space), "--store", url, "--", *command])) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f"torchx run -s local_cwd cubicml --mode record --space {space} --store {url} {' '.join(command)}" in out
    assert "local_docker" not in out


def test_the_whole_command_has_the_options_of_the_scheduler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    space, url = tmp_path / "space.toml", str(tmp_path / "store")
    space.write_text("[parameters.partition]\nchoices = ['fast', 'slow', 'new']\nscheduler = 'partition'\n")
    command = ("dist.ddp", "-j", "1x1", "--script", "train.py", "--", "--lr", "1")
    typed = ComponentLaunch.parse(command[0], command[1:]).launch
    launch = replace(typed, scheduler="slurm", scheduler_options={"partition": "slow"})
    workload, config = read_config(launch, load_space(str(space)))
    for partition, rate in (("slow", 100.0), ("fast", 300.0), ("slow", 101.0), ("fast", 301.0)):
        TrialStore(url).add(
            Trial.completed(workload=workload, config={**config, "partition": partition}, tokens_per_second=rate)
        )
    parser = argparse.ArgumentParser()
    suggest.add_arguments(parser)
    options = ["--space", str(space), "--store", url, "-s", "slurm", "-cfg", "time=10,partition=slow", "--json"]
    assert suggest.run(parser.parse_args([*options, "--", *command])) == 0
    found = json.loads(capsys.readouterr().out)
    # An ordinary launch keeps its partition.
    ours = ["cubicml", "--mode", "record", "--space", str(space), "--store", url]
    submission = ["torchx", "run", "-s", "slurm", "-cfg", "time=10,partition=slow"]
    assert found["next"]["command"] == [*submission, *ours, *command]
    assert [each["command"][2:6] for each in found["worth_trying"]] == [
        ["-s", "slurm", "-cfg", "time=10,partition=new"]
    ]


def test_a_faster_config_that_is_not_sure_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    space, url = tmp_path / "space.toml", str(tmp_path / "store")
    space.write_text("[parameters.workers]\nchoices = [0, 2, 4]\nflag = '--workers'\n")
    command = ("dist.ddp", "-j", "1x1", "--script", "train.py", "--", "--workers", "0")
    workload, config = read_config(ComponentLaunch.parse(command[0], command[1:]).launch, load_space(str(space)))
    for workers, rate in ((0, 1000.0), (4, 3600.0)):
        trial = Trial.completed(workload=workload, config={**config, "workers": workers}, tokens_per_second=rate)
        busy = {"host_cpus": 2, "other_busy_cpus": 1.7, "idle_cpus": 0.0}
        TrialStore(url).add(replace(trial, observed=busy))
    parser = argparse.ArgumentParser()
    suggest.add_arguments(parser)
    assert suggest.run(parser.parse_args(["--space", str(space), "--store", url, "--", *command])) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "workers 0 -> 4 measured 3.60x yours, not surely faster: " in shown
    assert "(crowded: other processes kept 1.7 of 2 processors busy)" in shown
    assert "no recorded launch suggests" not in shown


@pytest.mark.parametrize(("text", "is_told"), [("import torch\n", True), ("import accelerate\n", False)])
def test_a_hook_that_the_source_has_no_call_for_is_told_and_not_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str, is_told: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(text)
    (tmp_path / "space.toml").write_text(
        '[parameters.micro_batch_size]\nchoices = [1, 2]\nflag = "--batch"\n'
        '[parameters.sharding_strategy]\nchoices = ["FULL_SHARD", "SHARD_GRAD_OP"]\nhook = "fsdp"\n'
    )
    command = ["dist.ddp", "-j", "1x2", "--script", "train.py", "--", "--batch", "1"]
    workload, _ = read_config(ComponentLaunch.parse(command[0], command[1:]).launch, load_space("space.toml"))
    unhooked = Trial.completed(workload=workload, config={"micro_batch_size": 1}, tokens_per_second=9.0)
    TrialStore(str(tmp_path / "store")).add(unhooked)
    parser = argparse.ArgumentParser()
    suggest.add_arguments(parser)
    options = ["--space", "space.toml", "--store", str(tmp_path / "store"), "-s", "local_cwd", "--count", "4"]
    assert suggest.run(parser.parse_args([*options, "--", *command])) == 0
    said = capsys.readouterr().out
    kept = "sharding_strategy kept as typed: its hook cannot set it: the program calls neither"
    assert (kept in said) is is_told
    assert ("and SHARD_GRAD_OP by the hook fsdp" in said) is not is_told
    file = tmp_path / "space.toml"
    file.write_text(f'objective = ["tokens_per_second", "tokens_per_device_hour"]\n{file.read_text()}')
    assert suggest.run(parser.parse_args([*options, "--frontier", "--", *command])) == 0
    assert (kept in capsys.readouterr().out) is is_told


def test_a_recorded_text_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    suggest._print_lines(["no public source covers the device \x1b[2J"])
    assert capsys.readouterr().out == "\nno public source covers the device ?[2J\n"


@pytest.mark.parametrize("cubicrun", [(), ("cubicrun", "--cubicml-space", "other.toml")], ids=["typed", "cubicrun"])
def test_a_command_of_torchrun_is_proposed_as_one_that_is_recorded_in_the_same_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], cubicrun: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    Path("space.toml").write_text("[parameters.workers]\nchoices = [0, 2]\nflag = '--workers'\n")
    words = ("--nproc_per_node", "2", "train.py", "--workers", "0")
    parser = argparse.ArgumentParser()
    suggest.add_arguments(parser)
    options = ["--space", "space.toml", "--store", "store", "--json", "--", *(cubicrun or ("torchrun",))]
    TrialStore("store").add(Trial.completed(workload={}, config={}, tokens_per_second=9.0))
    assert suggest.run(parser.parse_args([*options, *words])) == 0
    found = json.loads(capsys.readouterr().out)
    ours = ["--cubicml-mode", "record", "--cubicml-space", "space.toml", "--cubicml-store", str(tmp_path / "store")]
    assert found["next"]["command"] == ["cubicrun", *ours, *words]
    (row,) = found["worth_trying"]
    assert row["command"][: len(ours) + 1] == ["cubicrun", *ours]
