from __future__ import annotations

from pathlib import Path

import pytest

from torchx_cubicml.launch.going_on import CommandPaths, ResumeSigns
from torchx_cubicml.launch.launch import Launch
from torchx_cubicml.records.resumption import UNSEEN, folder_id


@pytest.fixture(autouse=True)
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SLURM_RESTART_COUNT", raising=False)
    (tmp_path / "old" / "step-4").mkdir(parents=True)
    (tmp_path / "old" / "step-4" / "state.pt").write_text("state")
    (tmp_path / "empty").mkdir()
    return Path.cwd()


def command(*args: str, **env: str) -> Launch:
    return Launch(program="t.py", script_args=args, env=env)


@pytest.mark.parametrize(
    "args",
    [
        ["--resume"],
        ["--resume", "auto"],
        ["--resume=True", "--log_level", "info"],
        ["--resume-from-checkpoint", "old/step-4"],
        ["--load", "old", "--save", "empty"],
        ["--init_from=resume"],
        ["trainer.resume_from=last", "trainer.output_dir=old"],
        ["--continue_training", "--out_dir", "old"],
        ["--restart"],
        ["--load_state", "old/step-4/state.pt"],
    ],
    ids=" ".join,
)
def test_a_flag_says_that_the_training_goes_on(args: list[str]) -> None:
    assert ResumeSigns.of(command(*args)).says


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["--resume", "false"],
        ["--resume=None"],
        ["--no-resume"],
        ["--init_from=gpt2"],
        ["--load", "absent/run", "--save", "absent/run"],
        ["--resume", "--out_dir", "empty"],
        ["--resume_from_checkpoint", "absent/checkpoint"],
        ["--load_in_8bit"],
        ["--load_pretrained_checkpoint", "old"],
        ["--lr_restart", "3"],
        ["--load_data_path", "old"],
        ["--workload", "x"],
    ],
    ids=" ".join,
)
def test_no_flag_says_so(args: list[str]) -> None:
    assert ResumeSigns.of(command(*args)).says == ""


def test_a_flag_alone_is_blind_where_no_checkpoint_is_in_sight(start: Path) -> None:
    def is_blind(*args: str) -> bool:
        signs = ResumeSigns.of(command(*args))
        assert signs.says
        return signs.is_blind

    assert not is_blind("--resume")
    (start / "old" / "step-4" / "state.pt").rename(start / "old" / "step-4" / "state.zip")
    assert is_blind("--resume")
    assert is_blind("--resume=auto", "--data", "empty")
    assert not is_blind("--resume", "--out_dir", "old")
    assert not is_blind("--resume", "old/step-4")
    assert not ResumeSigns.of(command()).is_blind


def test_keys_of_a_config_file_and_variables_count_as_flags_do(start: Path) -> None:
    (start / "config.toml").write_text('[checkpoint]\nresume = true\nfolder = "old"\n')
    assert ResumeSigns.of(command("--config", "config.toml")).says == "checkpoint.resume"
    assert ResumeSigns.of(command(RESUME="1")).says == "resume"
    assert ResumeSigns.of(command(RESUME="0")).says == ""


def test_folders_that_hold_something_are_found(start: Path) -> None:
    def found(*args: str) -> frozenset[str]:
        return ResumeSigns.of(command(*args)).places

    named, own = folder_id(str(start / "old")), folder_id(str(start / "old"), is_named=False)
    assert own in found()
    assert named not in found()
    assert {named, own} <= found("--out", "old")
    assert folder_id(str(start / "old" / "step-4")) in found("--out", "old", "--name", "step-4")
    assert folder_id(str(start / "empty")) not in found("--out", "empty")
    # A flag that names the checkpoint itself leaves no doubt where it is.
    stated = found("--resume_from", "old/step-4/state.pt", "--out", "old")
    assert {folder_id(str(start / "old" / "step-4")), named} <= stated
    assert own not in stated


def test_logs_that_are_left_are_no_checkpoint(start: Path) -> None:
    (start / "runs").mkdir()
    for name in ("log.txt", "metrics.jsonl", "config.yaml", "events.out.tfevents.17.host.1.0"):
        (start / "runs" / name).write_text("text")
    assert folder_id(str(start / "runs")) not in ResumeSigns.of(command("--out", "runs")).places
    assert ResumeSigns.of(command("--resume", "--out", "runs")).says == ""
    (start / "runs" / "checkpoint").write_text("state")
    assert folder_id(str(start / "runs")) in ResumeSigns.of(command("--out", "runs")).places
    assert ResumeSigns.of(command("--resume", "--out", "runs")).says == "resume"


def test_the_working_folder_itself_holds_no_checkpoint_once_it_is_deleted(start: Path) -> None:
    (start / "data.pt").write_text("data")
    for words in ((), ("--out", ".")):
        (start / "a.pt").write_text("state")
        saved = set(CommandPaths.of(command(*words)).places(str(start / "a.pt")))
        assert saved & ResumeSigns.of(command(*words)).places
        (start / "a.pt").unlink()
        assert not saved & ResumeSigns.of(command(*words)).places


def test_an_output_that_holds_checkpoints_is_a_sign_whoever_saved_them(start: Path) -> None:
    (start / "runs" / "step-8").mkdir(parents=True)
    assert ResumeSigns.of(command("--out_dir", "runs")).holds == ""
    (start / "runs" / "log.txt").write_text("a log")
    assert ResumeSigns.of(command("--out_dir", "runs")).holds == ""
    (start / "runs" / "step-8" / "epoch=1.ckpt").write_text("state")
    assert ResumeSigns.of(command("--out_dir", "runs")).holds == "out_dir"
    assert ResumeSigns.of(command(CHECKPOINT_DIR="runs")).holds == "checkpoint_dir"
    assert ResumeSigns.of(command("--data_dir", "runs")).holds == ""
    assert ResumeSigns.of(command("--out_dir", "s3://bucket/runs")).holds == ""


def test_variables_count_that_the_script_reads_or_the_command_sets(start: Path) -> None:
    old = str(start / "old")
    (start / "t.py").write_text("import os\nos.environ['DATA_HOME']\n")
    shell = {"OLDPWD": old, "DATA_HOME": old, "RUN_ROOT": old}
    launch = command(**shell, OUT_DIR=old)
    assert CommandPaths.of(launch, shell=shell).settings.keys() == {"data_home", "out_dir"}
    assert CommandPaths.of(launch, shell={**shell, "OUT_DIR": old}).settings.keys() == {"data_home"}


def test_a_checkpoint_is_found_beside_many_files(start: Path) -> None:
    for number in range(9):
        (start / "old" / f"samples-{number}").mkdir()
        for place in range(600):
            (start / "old" / f"samples-{number}" / f"{place}.png").write_text("x")
    assert ResumeSigns.of(command("--out_dir", "old")).holds == "out_dir"


def test_a_restarted_job_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    assert ResumeSigns.of(command()).job == ""
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert ResumeSigns.of(command()).job == "slurm-12"


def test_the_root_of_a_checkpoint_is_what_words_name_innermost(start: Path) -> None:
    paths = CommandPaths.of(command("--out", "runs", "--name", "one", "--data", "/data/c4"))
    root, inner = start / "runs" / "one", start / "runs" / "one" / "step-8"
    assert paths.places(str(inner / "a.pt")) == (folder_id(str(root)), folder_id(str(inner)))
    assert paths.places(str(start / "runs" / "two" / "a.pt"))[0] == folder_id(str(start / "runs"))
    own = paths.places(str(start / "logs" / "version_3" / "a.ckpt"))
    assert own[0] == folder_id(str(start / "logs"), is_named=False)
    assert own[1:] == (folder_id(str(start / "logs")), folder_id(str(start / "logs" / "version_3")))
    assert paths.places(str(start / "a.pt")) == (folder_id(str(start / "a.pt"), is_named=False), folder_id(str(start)))
    far = paths.places("/elsewhere/step-1")
    assert far == (UNSEEN, folder_id("/elsewhere/step-1"))


def test_a_named_file_is_a_root_of_its_own(start: Path) -> None:
    paths = CommandPaths.of(command("--snapshot_path", "old/snapshot.pt"))
    (start / "old" / "snapshot.pt").write_text("state")
    root = paths.places(str(start / "old" / "snapshot.pt"))[0]
    assert root == folder_id(str(start / "old" / "snapshot.pt"))
    assert root in ResumeSigns.of(command("--snapshot_path", "old/snapshot.pt")).places
    assert root not in ResumeSigns.of(command("--snapshot_path", "old/other.pt")).places
