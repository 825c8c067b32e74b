from __future__ import annotations

import shlex
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.cli.component_command import named_store, run_words
from torchx_cubicml.cli.next_launch import next_launch
from torchx_cubicml.records.suggestion import Suggestion
from torchx_cubicml.records.trial import Trial
from torchx_cubicml.store import TrialStore
from torchx_cubicml.tuner import Prepared, TuneRequest, prepare
from torchx_cubicml.tuner.loop import _command as winning_command

if TYPE_CHECKING:
    from pathlib import Path

SPACE = """
[parameters.workers]
choices = [0, 4]
flag = "--workers"

[parameters.buckets]
choices = [1, 2]
flag = "--buckets"
"""
OWN, WINNER = {"workers": 0, "buckets": 1}, {"workers": 4, "buckets": 1}


def tuned(folder: Path, space: str = SPACE, *, gain: float = 2.0) -> Prepared:
    """Return the request of a tune whose store has three launches of the own config and of the winner each."""
    (folder / "space.toml").write_text(space)
    (folder / "train.py").write_text("print(1)\n")
    prepared = prepare(
        TuneRequest(
            component="dist.ddp",
            component_args=("-j", "1x2", "--script", "train.py", "--", "--workers", "0", "--buckets", "1"),
            space="space.toml",
            store=str(folder / "store"),
            scheduler="local_cwd",
        )
    )
    store = TrialStore(prepared.store_url)
    for config, speed in ((OWN, 1000.0), (WINNER, 1000.0 * gain)):
        for number in range(3):
            done = Trial.completed(
                workload=prepared.workload, config=config, tokens_per_second=speed * (1 + number / 500)
            )
            store.add(done)
    return prepared


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCHX_CUBICML_CACHE", str(tmp_path / "cache"))


def test_a_launch_with_the_space_file_takes_the_winner(tmp_path: Path) -> None:
    found = next_launch(tuned(tmp_path), WINNER)
    assert found.text == "Or your own command with the space file, which a launch rewrites to the same:"
    words = ["torchx", "run", "-s", "local_cwd", "cubicml", "--space", "space.toml", "--store", str(tmp_path / "store")]
    assert list(found.words[: len(words)]) == words
    dry = [*found.words[:2], "--dryrun", *found.words[2:]]
    done = subprocess.run(dry, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "0 -> 4" in done.stderr


@pytest.mark.parametrize(
    ("rules", "gain", "why"),
    [
        ('[rewrite]\nfreeze = ["workers"]\n', 2.0, "because no recorded launch suggests a faster config"),
        ("[rewrite]\nmin_gain = 3.0\n", 2.0, "below min_gain"),
        ("", 1.001, "because no recorded launch suggests a faster config"),
    ],
    ids=["frozen", "gain", "no gain"],
)
def test_a_launch_that_will_not_apply_the_winner_says_why(tmp_path: Path, rules: str, gain: float, why: str) -> None:
    found = next_launch(tuned(tmp_path, SPACE + rules, gain=gain), WINNER)
    assert found.text.startswith("Your own command with the space file will not apply it, because ")
    assert why in found.text


def test_another_winner_is_told_as_such(tmp_path: Path) -> None:
    other = {"workers": 0, "buckets": 2}
    text = next_launch(tuned(tmp_path), other).text
    assert text == "Your own command with the space file applies workers 0 -> 4 instead:"


def test_a_store_that_a_launch_finds_is_not_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = tuned(tmp_path)
    assert named_store(prepared.store_url) == prepared.store_url
    monkeypatch.setenv("TORCHX_CUBICML_STORE", "store")
    assert named_store(prepared.store_url) == ""
    assert shlex.join(next_launch(replace(prepared), WINNER).words).count("--store") == 0


def test_the_winner_of_a_tune_of_torchrun_is_a_command_that_runs(tmp_path: Path) -> None:
    (tmp_path / "space.toml").write_text(SPACE)
    (tmp_path / "train.py").write_text("")
    words = ("--nproc_per_node", "2", "train.py", "--workers", "0", "--buckets", "1")
    request = TuneRequest(
        component="torchrun", component_args=words, space="space.toml", store="store", scheduler="local_cwd"
    )
    prepared = prepare(request)
    nothing = dict.fromkeys(("throughput", "low", "high"))
    winner = Suggestion(config=WINNER, **nothing, probability_to_fit=1.0, reason="", n_trials=0)
    made = run_words("local_cwd", "", winning_command(prepared, winner), store=prepared.store_url)
    after = ["--nproc_per_node", "2", "train.py", "--workers", "4", "--buckets", "1"]
    assert made == ["cubicrun", "--cubicml-store", prepared.store_url, *after]
    command = [made[0], "--cubicml-dryrun", *made[1:]]
    dry = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert dry.returncode == 0, dry.stderr


@pytest.mark.parametrize(
    ("scheduler", "args", "words", "config"),
    [
        ("", "", "train.py", ""),  # whatever TorchX then finds
        ("slurm", "", "train.py", ""),
        ("local_cwd", "log_dir=logs", "train.py", ""),
        ("local_cwd", "", "train.py --out runs/${app_id}", ""),
        ("local_cwd", "", "train.py", "[component:utils.sh]\nenv = NCCL_DEBUG=INFO\n"),
        ("local_cwd", "", "train.py", "[local_cwd]\nlog_dir = logs\n"),
    ],
)
def test_what_torchx_adds_to_a_launcher_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheduler: str, args: str, words: str, config: str
) -> None:
    file = tmp_path / ".torchxconfig"
    file.touch()
    monkeypatch.setenv("TORCHXCONFIG", str(file))
    command = ["utils.sh", "--", "torchrun", *words.split()]
    if config:
        assert run_words(scheduler, args, command)[0] == "cubicrun"
        file.write_text(config)
    assert run_words(scheduler, args, command)[:2] == ["torchx", "run"]
