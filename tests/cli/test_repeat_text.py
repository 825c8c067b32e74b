"""Repeating a run from its record: what ``history show`` says, and a real run that is repeated from it alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from torchx_cubicml.cli.repeat_text import print_command, repeat_lines
from torchx_cubicml.errors import RecordError
from torchx_cubicml.records.kept_command import kept_command
from torchx_cubicml.records.provenance import COMMIT, SPACE, UNCOMMITTED, Trust
from torchx_cubicml.records.trial import State, Trial
from torchx_cubicml.store import TrialStore

TRIAL = Trial(
    trial_id="t1",
    workload={"program": "train.py"},
    config={"micro_batch_size": 8, "compile": True},
    state=State.COMPLETED,
    observed={"world_size": 2, "nnodes": 1},
    provenance={COMMIT: "ab" * 20, UNCOMMITTED: False, SPACE: "0123456789abcdef"},
)
STORE = "/team/store"
KEPT = kept_command(["torchrun", "train.py", "--api-key", "x"], variables={}, hooks={"fsdp": "NO_SHARD"}, files={})


def test_without_its_command_a_record_says_what_to_set() -> None:
    assert repeat_lines(TRIAL, store=STORE) == [
        f"git checkout {'ab' * 20}",
        "start train.py with nnodes=1 world_size=2",
        "set micro_batch_size=8 compile=True, in the places of space file 0123456789abcdef",
        "torchx cubicml history repeat t1 --store /team/store --space FILE -- YOUR COMMAND",
    ]


@pytest.mark.parametrize(
    ("provenance", "state"),
    [({UNCOMMITTED: True}, ", with changes that were not committed"), ({}, ", perhaps with changes")],
)
def test_changes_beside_the_commit_are_told(provenance: dict[str, bool], state: str) -> None:
    trial = replace(TRIAL, provenance={COMMIT: "ab" * 20, **provenance}, config={}, observed={})
    assert repeat_lines(trial, store=STORE) == [f"git checkout {'ab' * 20}{state}", "start train.py"]


def test_a_record_without_commit_and_command_says_nothing() -> None:
    assert repeat_lines(replace(TRIAL, provenance={}), store=STORE) == []


def test_the_kept_command_is_printed_alone(capsys: pytest.CaptureFixture[str]) -> None:
    trial = replace(TRIAL, command=KEPT)
    print_command(trial)
    printed, notes = capsys.readouterr()
    assert printed == "torchrun train.py --api-key '***'\n"
    assert "git checkout" in notes
    assert "fsdp = NO_SHARD by a hook" in notes
    assert "*** stands for a secret" in notes
    assert repeat_lines(trial, store=STORE)[-1] == "torchx cubicml history show t1 --command --store /team/store"


def test_a_command_that_was_not_kept_is_an_error() -> None:
    with pytest.raises(RecordError, match="t1 holds no command: it was launched without --keep-command"):
        print_command(TRIAL)


def test_the_command_of_others_comes_with_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    print_command(replace(TRIAL, command=KEPT, trust=Trust.PUBLIC))
    assert "trust level public): read it before you run it" in capsys.readouterr().err
    print_command(replace(TRIAL, command=KEPT))
    assert "trust level" not in capsys.readouterr().err


@pytest.mark.parametrize("commit", ["abcd; rm -rf ~", "--force", "ab" * 20 + "\n", "\x1b[2J"])
def test_a_commit_that_is_no_hash_gives_no_command(commit: str) -> None:
    assert repeat_lines(replace(TRIAL, provenance={COMMIT: commit}), store=STORE) == []


SCRIPT = """\
import json, os, sys
if os.environ["RANK"] == "0":
    facts = [sys.argv[1:], os.environ["DEPTH"], int(os.environ["WORLD_SIZE"])]
    open("ran.json", "w").write(json.dumps(facts))
"""
SPACE_FILE = """\
objective = "samples_per_second"
[parameters.micro_batch_size]
choices = [2, 4]
flag = "--batch_size"
[parameters.depth]
choices = [1, 2]
env = "DEPTH"
"""
SHOW = "import sys; from torchx.cli.main import main; main(['cubicml', 'history', 'show', *sys.argv[1:]])"


@pytest.mark.launch
def test_a_stranger_repeats_a_run_from_its_record_and_the_checkout(tmp_path: Path) -> None:
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    mine.mkdir()
    (mine / "train.py").write_text(SCRIPT)
    (mine / "space.toml").write_text(SPACE_FILE)
    identity = ("-c", "user.name=n", "-c", "user.email=n@example.org")
    for words in (("init", "--quiet"), ("add", "train.py"), (*identity, "commit", "--quiet", "-m", "one")):
        subprocess.run(["git", *words], cwd=mine, check=True)
    subprocess.run(["git", "clone", "--quiet", str(mine), str(theirs)], check=True)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {name: text for name, text in os.environ.items() if name != "DEPTH"} | {"PATH": path}
    options = ("--cubicml-keep-command", "--cubicml-store", str(tmp_path / "store"), "--cubicml-space", "space.toml")
    command = ("--cubicml-mode", "record", "--nproc_per_node", "2", "train.py", "--batch_size", "4", "--note", "a b")
    subprocess.run(
        [sys.executable, "-m", "torchx_cubicml.cubicrun", *options, *command],
        cwd=mine,
        env={**environment, "DEPTH": "2"},
        check=True,
    )
    (trial,) = TrialStore(str(tmp_path / "store"))
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=mine, capture_output=True, text=True, check=True)
    assert trial.provenance[COMMIT] == head.stdout.strip()
    assert trial.provenance[UNCOMMITTED] is False
    words = [trial.trial_id[:12], "--store", str(tmp_path / "store"), "--command"]
    shown = subprocess.run([sys.executable, "-c", SHOW, *words], capture_output=True, text=True, check=True)
    assert f"git checkout {head.stdout.strip()}\n" in shown.stderr
    subprocess.run(["/bin/sh", "-c", shown.stdout], cwd=theirs, env=environment, check=True)
    ran = [json.loads((folder / "ran.json").read_text()) for folder in (mine, theirs)]
    assert ran[0] == ran[1] == [["--batch_size", "4", "--note", "a b"], "2", 2]
