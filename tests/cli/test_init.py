from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.cli import init
from torchx_cubicml.errors import LaunchError, SpaceError
from torchx_cubicml.records.trial import State, Trial
from torchx_cubicml.space.toml import load_space, parse_space
from torchx_cubicml.space.trainers import TRAINERS
from torchx_cubicml.store import TrialStore

if TYPE_CHECKING:
    from pathlib import Path


def run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    init.add_arguments(parser)
    return init.run(parser.parse_args(words))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCHX_CUBICML_STORE", str(tmp_path / "own-store"))
    (tmp_path / "train.py").write_text("exec(open('configurator.py').read())")
    return tmp_path


COMMAND = ["--", "dist.ddp", "-j", "1x2", "--script", "train.py", "--", "--batch_size=8", "--compile=False"]


def test_unreadable_help_is_explained(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*COMMAND) == 0
    written = capsys.readouterr()
    assert written.err == ("torchx-cubicml: no argument parser found in train.py, so its --help was not read\n")
    assert parse_space(written.out, where="x").parameters


def test_a_trainer_is_recognised(folder: Path) -> None:
    assert run("-o", "gpt.toml", *COMMAND) == 0
    assert 'trainer = "nanogpt"' in (folder / "gpt.toml").read_text()
    assert load_space("gpt.toml").tune.args == {"--out_dir=": "{scratch}/{launch_id}"}
    with pytest.raises(SpaceError, match=r"gpt.toml already exists"):
        run("-o", "gpt.toml", *COMMAND)


def test_the_help_names_the_trainers_and_their_tables() -> None:
    parser = argparse.ArgumentParser()
    init.add_arguments(parser)
    text = " ".join(parser.format_help().split())
    for trainer in TRAINERS.values():
        for with_values in (True, False):
            assert ", ".join([*trainer.names(with_values=with_values)]) in text
    assert 'trainers (trainer = "NAME" in a space file)' in text
    assert "trainers" not in parser.format_usage()


@pytest.mark.parametrize("launcher", ["torchrun", "cubicrun --cubicml-store s --cubicml-mode=off"])
def test_a_command_of_torchrun_is_read(launcher: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "train.py").write_text("print('no flags')")
    words = f"{launcher} --nproc_per_node 2 train.py --batch_size 4 --accumulate 2"
    assert run("-o", "s.toml", "--", *words.split()) == 0
    tune = "torchx cubicml tune --space s.toml -- torchrun ..."
    assert f"then run: {tune} (or launch as usual: cubicrun --cubicml-space s.toml ...)\n" in capsys.readouterr().err
    assert [item.name for item in load_space("s.toml").parameters] == [
        "micro_batch_size",
        "gradient_accumulation_steps",
    ]
    with pytest.raises(LaunchError):
        run("--", launcher.partition(" ")[0])


def test_recorded_launches_tell_flags_that_names_do_not(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "train.py").write_text("print('no parser')")
    words = ["--store", str(folder / "store"), "--", "torchrun", "train.py", "--chunk", "4"]
    assert run(*words) == 0
    assert "found no flag that changes only the speed: name such flags in the file, or" in capsys.readouterr().err
    store = TrialStore(str(folder / "store"))
    for size in (4, 8):
        trial = Trial(
            trial_id=f"trial-{size}",
            workload={"program": "train.py"},
            config={},
            state=State.COMPLETED,
            observed={"micro_batch_size": size},
            arguments=("--chunk", str(size)),
        )
        store.add(trial)
    assert run(*words) == 0
    written = capsys.readouterr()
    assert "# In 2 recorded launches, --chunk was the observed micro batch size (4, 8).\n" in written.out
    # No accumulation is known that keeps the training, so this flag stays.
    assert "found no flag that changes only the speed; 2 recorded launches did not tell more: " in written.err


def test_a_store_that_cannot_be_read_is_told_and_not_used(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "file").write_text("no store")
    assert run("--store", str(folder / "file"), *COMMAND) == 0
    written = capsys.readouterr()
    assert "torchx-cubicml: recorded launches are not used: " in written.err
    assert parse_space(written.out, where="x").parameters


def test_an_absent_home_directory_leaves_recorded_launches_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TORCHX_CUBICML_STORE")
    monkeypatch.setattr("torchx_cubicml.settings.DEFAULT_STORE", "~nobody-of-that-name/store")
    assert run(*COMMAND) == 0
    written = capsys.readouterr()
    assert "recorded launches are not used: no home directory" in written.err
    assert parse_space(written.out, where="x").parameters


@pytest.mark.parametrize("front", [[], ["cubicrun", "--"]])
def test_the_next_step_of_a_plain_python_command(
    front: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "train.py").write_text("print('no flags')")
    assert run("-o", "p.toml", "--", *front, "python", "train.py", "--batch_size=4", "--accumulate=2") == 0
    assert (
        "then run: torchx cubicml tune --space p.toml -- python ... "
        "(or launch as usual: cubicrun --cubicml-space p.toml -- python ...)"
    ) in capsys.readouterr().err
