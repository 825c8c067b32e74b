"""A stranger repeats a run from its record and a clone of the program, without a kept command: real trainings."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml import State, Trial, TrialStore
from torchx_cubicml.records.kept_command import kept_command
from torchx_cubicml.records.trial import short_id

if TYPE_CHECKING:
    from tests.shared_results import SharedResults

pytestmark = pytest.mark.launch
SCRIPT = """\
import os, sys
import torch
torch.distributed.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, int(os.environ["DEPTH"])))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(10):
    model(torch.randn(int(sys.argv[2]), 4)).sum().backward()
    optimizer.step()
"""
SPACE = """\
objective = "samples_per_second"
[parameters.micro_batch_size]
choices = [2, 4]
flag = "--batch_size"
[parameters.depth]
choices = [1, 2]
env = "DEPTH"
"""
OWN = ("torchrun", "--nproc_per_node", "2", "train.py", "--batch_size", "2", "--width", "4")
HISTORY = "import sys; from torchx.cli.main import main; main(['cubicml', 'history', *sys.argv[1:]])"


@dataclass(frozen=True)
class People:
    """The folders of the person who records, and of the stranger; the exports; and the recorded trial."""

    recorder: Path
    stranger: Path
    exported: Path
    anonymous: Path
    trial: Trial


def environment(**variables: str) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {name: text for name, text in os.environ.items() if name != "DEPTH"} | {"PATH": path, **variables}


def history(*words: str | Path, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", HISTORY, *map(str, words)]
    return subprocess.run(command, cwd=cwd, env=environment(**variables), capture_output=True, text=True, check=False)


def git(*words: str | Path, cwd: Path) -> None:
    identity = ("-c", "user.name=n", "-c", "user.email=n@example.org")
    subprocess.run(["git", *identity, *map(str, words)], cwd=cwd, check=True, capture_output=True)


@pytest.fixture(scope="module")
def people(shared_results: SharedResults) -> People:
    return shared_results.get("history repeat", recorded_and_exported)


def recorded_and_exported(folder: Path) -> People:
    mine, theirs = folder / "mine", folder / "theirs"
    mine.mkdir()
    (mine / "train.py").write_text(SCRIPT)
    (mine / "space.toml").write_text(SPACE)
    git("init", "--quiet", cwd=mine)
    git("add", ".", cwd=mine)
    git("commit", "--quiet", "-m", "one", cwd=mine)
    store = folder / "store"
    ours = ("--cubicml-store", str(store), "--cubicml-space", "space.toml", "--cubicml-mode", "record")
    words = ("--nproc_per_node", "2", "train.py", "--batch_size", "4", "--width", "4")
    command = [sys.executable, "-m", "torchx_cubicml.cubicrun", *ours, *words]
    subprocess.run(command, cwd=mine, env=environment(DEPTH="2"), check=True, capture_output=True)
    for target, options in (("exported", ()), ("anonymous", ("--anonymous", "--yes"))):
        done = history("export", folder / target, "--store", store, *options, cwd=folder)
        assert done.returncode == 0, done.stderr
    git("clone", "--quiet", mine, theirs, cwd=folder)
    (trial,) = TrialStore(str(store))
    return People(mine, theirs, folder / "exported", folder / "anonymous", trial)


def repeat(people: People, *words: str | Path, store: Path, own: tuple[str, ...] = OWN) -> dict[str, object]:
    done = history("repeat", *words, "--store", store, "--json", "--", *own, cwd=people.stranger, DEPTH="1")
    assert done.stdout, done.stderr
    printed = json.loads(done.stdout)
    assert done.returncode == (1 if printed["differences"] or printed["set_in_job"] else 0)
    return dict(printed)


def test_the_printed_command_repeats_config_and_facts(people: People, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(people.exported, store)
    words = (people.trial.trial_id[:12], "--space", "space.toml", "--store", store, "--", *OWN)
    done = history("repeat", *words, cwd=people.stranger, DEPTH="1")
    assert done.returncode == 0, done.stderr
    assert f"nothing is known to differ from trial {short_id(people.trial.trial_id)}" in done.stderr
    assert done.stdout == (
        f"DEPTH=2 cubicrun --cubicml-mode record --cubicml-space space.toml --cubicml-store {store} "
        "--nproc_per_node 2 train.py --batch_size 4 --width 4\n"
    )
    variables = environment()
    subprocess.run(["/bin/sh", "-c", done.stdout], cwd=people.stranger, env=variables, check=True, capture_output=True)
    first, again = sorted(TrialStore(str(store)), key=lambda trial: trial.started_at)
    assert again.state is first.state is State.COMPLETED
    assert again.config == first.config == {"micro_batch_size": 4, "depth": 2}
    assert again.provenance["commit"] == first.provenance["commit"]
    stable = (
        "world_size",
        "n_params",
        "global_batch_size",
        "micro_batch_size",
        "precision",
        "optimizer",
        "torch_version",
    )
    assert {name: again.observed.get(name) for name in stable} == {name: first.observed.get(name) for name in stable}
    assert again.observed["n_params"] == 10  # 4 x 2 weights and 2 biases: the variable was set, too


def test_another_flag_another_file_and_another_commit_are_told(people: People, tmp_path: Path) -> None:
    git("clone", "--quiet", people.recorder, tmp_path / "changed", cwd=tmp_path)
    one, trial = replace(people, stranger=tmp_path / "changed"), people.trial.trial_id
    own = (*OWN[:-1], "8")
    found = repeat(one, trial, "--space", "space.toml", store=people.exported, own=own)
    assert found["differences"] == ["another value of --width"]
    (one.stranger / "train.py").write_text(SCRIPT.replace("lr=0.1", "lr=0.1, momentum=0.9"))
    found = repeat(one, trial, "--space", "space.toml", store=people.exported)
    assert "files of this checkout differ from its commit" in str(found["differences"])
    assert "another value of the program's file" in str(found["differences"])
    git("commit", "--quiet", "-am", "two", cwd=one.stranger)
    found = repeat(one, trial, "--space", "space.toml", store=people.exported)
    commit = people.trial.provenance["commit"]
    assert f", and the record at {commit}" in str(found["differences"])


def test_another_size_of_the_job_is_told(people: People) -> None:
    own = ("torchrun", "--nproc_per_node", "1", *OWN[3:])
    found = repeat(people, people.trial.trial_id, "--space", "space.toml", store=people.exported, own=own)
    assert "world_size is 1 here and 2 in the record" in str(found["differences"])


def test_an_anonymous_record_gives_what_it_holds_and_says_what_it_lacks(people: People) -> None:
    (trial,) = TrialStore(str(people.anonymous))
    found = repeat(people, trial.trial_id, "--space", "space.toml", store=people.anonymous)
    assert "--batch_size 4" in str(found["command"])
    assert "DEPTH" not in str(found["command"])  # its name and value are pseudonyms
    assert "the record holds no commit of the program" in str(found["unknown"])
    assert "the record holds no depth: your own stays" in str(found["unknown"])
    assert any("has no place in the space file" in text for text in found["differences"])  # type: ignore[union-attr]


def test_a_component_is_repeated_as_torchx_runs_it(people: People) -> None:
    own = (
        "dist.ddp",
        "-j",
        "1x2",
        "--script",
        "train.py",
        "--env",
        "DEPTH=1",
        "--",
        "--batch_size",
        "2",
        "--width",
        "4",
    )
    found = repeat(
        people, "-s", "local_cwd", people.trial.trial_id, "--space", "space.toml", store=people.exported, own=own
    )
    ours = ["--mode", "record", "--space", "space.toml", "--store", str(people.exported)]
    words = ["torchx", "run", "-s", "local_cwd", "cubicml", *ours, "dist.ddp"]
    assert str(found["command"]).startswith(shlex.join(words))
    assert "--batch_size 4" in str(found["command"])
    assert "DEPTH=2" in str(found["command"])


def test_what_no_command_sets_is_told(people: People, tmp_path: Path) -> None:
    hook = (
        '[parameters.sharding_strategy]\nchoices = ["FULL_SHARD", "NO_SHARD"]\nhook = "fsdp"\ndefault = "FULL_SHARD"\n'
    )
    (tmp_path / "space.toml").write_text(SPACE + hook)
    trial = replace(people.trial, config={**people.trial.config, "sharding_strategy": "NO_SHARD"})
    TrialStore(str(tmp_path / "store")).add(trial)
    words = (trial.trial_id, "--space", tmp_path / "space.toml", "--store", tmp_path / "store", "--", *OWN)
    done = history("repeat", *words, cwd=people.stranger, DEPTH="1")
    assert (done.returncode, "--batch_size 4" in done.stdout) == (1, True), done.stderr
    assert "the command does not set NO_SHARD by the hook fsdp, as the recorded job did" in done.stderr
    assert "nothing is known to differ" not in done.stderr


def test_a_kept_command_is_printed_from_the_record_alone(people: People, tmp_path: Path) -> None:
    kept = kept_command(["python", "train.py", "--api_key", "x"], variables={"DEPTH": "2"}, hooks={}, files={})
    TrialStore(str(tmp_path)).add(replace(people.trial, command=kept))
    done = history("repeat", people.trial.trial_id, "--store", tmp_path, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "DEPTH=2 python train.py --api_key '***'\n")
    assert f"git checkout {people.trial.provenance['commit']}" in done.stderr


def test_without_command_or_space_file_it_says_what_to_give(people: People) -> None:
    for words, text in (
        ((people.trial.trial_id,), "holds no command: give your own launch of its program"),
        ((people.trial.trial_id, "--", *OWN), "--space is missing"),
        ((), "the following arguments are required: TRIAL"),
        (("--nonsense", "1", people.trial.trial_id), "unrecognized arguments: --nonsense"),
    ):
        done = history("repeat", "--store", people.exported, *words, cwd=people.stranger, DEPTH="1")
        assert (done.returncode, text in done.stderr) == (2, True), done.stderr
