from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from torch.distributed import TCPStore
from torch.distributed.run import get_args_parser

from tests.forked_programs import ForkedProgram
from tests.spaces import BATCH_SIZES
from torchx_cubicml.cubicrun import Plan, main, plan_launch, usage_error
from torchx_cubicml.launch.launchers.command_launch import FLAGS, split_options
from torchx_cubicml.records.contract import (
    CONTRACT_VARIABLE,
    SECOND_ATTEMPT_VARIABLE,
    TypedCommand,
    decode_contract,
)
from torchx_cubicml.records.trial import Origin, State, Trial
from torchx_cubicml.settings import default_store_url
from torchx_cubicml.store import TrialStore

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Value

SHOW = """
import json, os, sys, time
line = json.dumps({"argv": sys.argv, "agent": os.getppid(), "restarts": os.environ["TORCHELASTIC_RESTART_COUNT"]})
with open(os.path.join(os.environ["SHOWN"], os.environ["RANK"]), "a") as file:
    file.write(line + "\\n")
if "--fail-once" in sys.argv and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    sys.exit(7)
if "--wait" in sys.argv:
    time.sleep(60)
"""
TYPED = ["show.py", "--batch_size", "2", "--accumulate", "8", "--text", "a $b"]
FASTEST = ["show.py", "--batch_size", "8", "--accumulate", "2", "--text", "a $b"]
COMMAND = ["show.py", "--batch_size", "2", "--accumulate", "8", "--text", "a $$b"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_port: int) -> Path:
    """Make a working directory with a script, a space file and a store that knows 8 to be fastest."""
    (tmp_path / "show.py").write_text(SHOW)
    (tmp_path / "space.toml").write_text(BATCH_SIZES)
    (tmp_path / "shown").mkdir()
    fill(tmp_path / "store")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOWN", str(tmp_path / "shown"))
    monkeypatch.setenv("TORCHX_CUBICML_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("TORCHX_CUBICML_DECISION_DEADLINE_S", "300")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PET_MASTER_PORT", str(free_port))  # torchrun's own is one for all launches of a machine
    for name in ("TORCHX_CUBICML_SPACE", "TORCHX_CUBICML_MODE", "TORCHX_JOB_ID", "PYTHON_EXEC", CONTRACT_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def fill(store: Path, *, fastest: int = 8) -> None:
    trials = TrialStore(str(store))
    for world_size in (1, 2, 4):
        for batch in (1, 2, 4, 8):
            trials.add(
                Trial.completed(
                    workload={"program": "show.py", "world_size": world_size},
                    config={"micro_batch_size": batch, "gradient_accumulation_steps": 16 // batch},
                    tokens_per_second=9000.0 if batch == fastest else 1000.0 + batch,
                )
            )


def planned(*words: str) -> Plan:
    return plan_launch(*split_options(words))


def test_no_torchx_is_needed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("torchx.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torchx", None)
    (folder / ".torchxconfig").write_text("[component:cubicml]\nmode = record\n")
    monkeypatch.setenv("TORCHXCONFIG", str(folder / ".torchxconfig"))
    plan = plan_launch({"space": "space.toml"}, ["--nproc_per_node", "1", *TYPED])
    assert "-mtorchx_cubicml.recorder" in plan.args
    assert [line for line in plan.lines if "running your command as typed" in line] == []
    assert plan.args[-len(TYPED) :] == tuple(TYPED), "the mode of the file holds"


@pytest.mark.parametrize(
    ("line", "given", "rest"),
    [
        ("--cubicml-space s.toml --nnodes 1 t.py", {"space": "s.toml"}, "--nnodes 1 t.py"),
        ("--cubicml-mode=off --cubicml-store=s3://a=b t.py", {"mode": "off", "store": "s3://a=b"}, "t.py"),
        ("t.py --cubicml-mode off", {}, "t.py --cubicml-mode off"),
        ("--cubicml-nope 1 t.py", {}, "--cubicml-nope 1 t.py"),
        ("--cubicml-mode", {}, "--cubicml-mode"),
        ("--cubicml-keep-command --cubicml-mode record t.py", {"keep_command": "yes", "mode": "record"}, "t.py"),
        ("", {}, ""),
    ],
    ids=["first", "joined", "the script's own", "unknown", "without a value", "a switch", "nothing"],
)
def test_our_options_stand_in_front_of_those_of_torchrun(line: str, given: dict[str, str], rest: str) -> None:
    assert split_options(shlex.split(line)) == (given, shlex.split(rest))


def test_no_option_of_torchrun_can_be_taken_for_one_of_ours() -> None:
    options = [text for action in get_args_parser()._actions for text in action.option_strings]
    assert options
    assert not [text for text in options if text.startswith(FLAGS[:3]) or FLAGS.startswith(text)]


def test_a_command_with_its_own_launcher_is_recorded_and_rewritten(folder: Path) -> None:
    launcher = ["mpirun", "-np", "2", sys.executable, "-u"]
    plan = planned("--cubicml-space", "space.toml", "--", *launcher, *TYPED)
    assert plan.command == [*launcher, "-mtorchx_cubicml.recorder", *FASTEST]
    contract = decode_contract(plan.env[CONTRACT_VARIABLE])
    assert (contract.workload, contract.origin) == ({"program": "show.py", "world_size": 2}, Origin.REWRITE)
    assert contract.trial_id.startswith("trial-")
    assert (plan.second_args, SECOND_ATTEMPT_VARIABLE in plan.env) == ((), False)


@pytest.mark.parametrize(
    ("options", "line", "why"),
    [
        ("--cubicml-mode off", "python show.py", ""),
        ("", "accelerate launch --frobnicate show.py", "unknown option --frobnicate of accelerate launch"),
        ("", "mpirun -np 2 ./show.sh", "show.sh is neither torchrun nor python"),
        ("", "/nowhere/accelerate launch --cpu show.py", "there is no command /nowhere/accelerate"),
        ("", "/nowhere/python3 show.py", "/nowhere/python3 does not start"),
    ],
)
def test_a_command_with_its_own_launcher_runs_as_typed(folder: Path, options: str, line: str, why: str) -> None:
    plan = planned(*options.split(), "--", *line.split())
    assert (plan.command, dict(plan.env)) == (line.split(), {})
    assert why in "".join(plan.lines)
    assert bool(why) == bool(plan.lines)


def test_a_script_behind_two_hyphens_is_torchruns(folder: Path) -> None:
    plan = planned("--", *COMMAND)
    assert plan.command[1:3] == ["-P", "-c"]
    assert "torch.distributed.run" in plan.command[3]
    assert plan.args == ("--", "-mtorchx_cubicml.recorder", *COMMAND)


def test_a_command_is_recorded_and_rewritten(folder: Path) -> None:
    plan = planned("--cubicml-space", "space.toml", "--nproc_per_node", "2", *COMMAND)
    assert plan.args[:4] == ("--nproc_per_node", "2", "--", "-mtorchx_cubicml.recorder")
    assert plan.args[4:] == (*FASTEST[:-1], "a $$b")
    contract = decode_contract(plan.env[CONTRACT_VARIABLE])
    assert contract.workload == {"program": "show.py", "world_size": 2}
    assert contract.origin is Origin.REWRITE
    assert contract.trial_id.startswith("trial-")
    assert "    to switch this off           --cubicml-mode record" in plan.lines
    assert plan.second_args == ("--nproc_per_node", "2", "--", "-mtorchx_cubicml.recorder", *COMMAND)
    second = decode_contract(plan.env[SECOND_ATTEMPT_VARIABLE])
    assert (second.is_second_attempt, second.trial_id) == (True, contract.trial_id)
    assert (second.origin, second.suggestion) == (Origin.USER, None)
    assert second.config == {"micro_batch_size": 2, "gradient_accumulation_steps": 8}


def test_a_command_that_is_not_rewritten_has_no_second_attempt(folder: Path) -> None:
    fastest = ["--batch_size", "8", "--accumulate", "2"]
    Path("once.toml").write_text(f"{BATCH_SIZES}\n[rewrite]\nretry_as_typed = false\n")
    for line in (["--cubicml-space", "space.toml", "show.py", *fastest], ["--cubicml-space", "once.toml", *COMMAND]):
        plan = planned(*line)
        assert plan.second_args == ()
        assert set(plan.env) == {CONTRACT_VARIABLE}


def test_a_task_that_slurm_starts_again_is_the_same_launch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def trial_id(*words: str) -> str:
        return decode_contract(planned(*words).env[CONTRACT_VARIABLE]).trial_id

    typed, rewritten = ("--nproc_per_node", "1", *COMMAND), ("--cubicml-space", "space.toml", *COMMAND)
    for name, value in (("SLURM_JOB_ID", "7"), ("SLURM_STEP_ID", "0"), ("SLURM_TASK_PID", "1")):
        monkeypatch.setenv(name, value)
    assert trial_id(*typed) != trial_id(*typed)  # one of several launches of a script, perhaps
    monkeypatch.setenv("SLURM_TASK_PID", str(os.getpid()))
    assert trial_id(*typed) == trial_id(*typed)
    assert trial_id(*rewritten) == trial_id(*rewritten) != trial_id(*typed)


def test_a_command_whose_output_is_remote_stays_as_typed(folder: Path) -> None:
    plan = planned("--cubicml-space", "space.toml", *COMMAND, "--save-dir", "s3://bucket/run")
    assert plan.args[-2:] == ("--save-dir", "s3://bucket/run")
    assert plan.second_args == ()
    assert "what it left in s3:// (--save-dir) could not be moved aside" in plan.lines[-1]


@pytest.mark.parametrize(
    ("line", "wrapped"),
    [
        ("-m pkg.train --x 1", "-- -mtorchx_cubicml.recorder -m pkg.train --x 1"),
        ("-m --nproc-per-node=2 pkg.train", "--nproc-per-node=2 -- -mtorchx_cubicml.recorder -m pkg.train"),
        ("--standalone -- t.py -- y", "--standalone -- -mtorchx_cubicml.recorder t.py -- y"),
        ("t.py -- y '' 'a b' ${local_rank}", "-- -mtorchx_cubicml.recorder t.py y '' 'a b' ${local_rank}"),
    ],
    ids=["module", "module first", "after --", "hostile words"],
)
def test_a_command_is_wrapped_word_by_word(folder: Path, line: str, wrapped: str) -> None:
    assert planned(*shlex.split(line)).args == tuple(shlex.split(wrapped))


def test_a_program_without_python_is_wrapped_in_its_own(folder: Path) -> None:
    plan = planned("--no-python", sys.executable, "-u", "t.py", "1")
    recorder = ("-mtorchx_cubicml.recorder", "t.py", "1")
    assert plan.args == ("--no-python", sys.executable, "-u", *recorder)


def test_options_of_torchrun_come_from_its_environment_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_NPROC_PER_NODE", "4")
    monkeypatch.setenv("PET_MODULE", "1")
    plan = planned("pkg.train")
    assert plan.args == ("torchx_cubicml.recorder", "--", "-m", "pkg.train")
    assert decode_contract(plan.env[CONTRACT_VARIABLE]).workload == {"program": "-m pkg.train", "world_size": 4}


def test_variables_that_the_space_names_are_set(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROTO", "a")
    Path("env.toml").write_text('[parameters.proto]\nchoices = ["a", "b"]\nenv = "PROTO"\n')
    workload: dict[str, Value] = {"program": "show.py", "world_size": 1}
    for name, speed in (("a", 1.0), ("b", 2.0)):
        trial = Trial.completed(workload=workload, config={"proto": name}, tokens_per_second=speed)
        TrialStore(str(folder / "env-store")).add(trial)
    plan = planned("--cubicml-space=env.toml", "--cubicml-store=env-store", *COMMAND)
    assert set(plan.env) == {"PROTO", CONTRACT_VARIABLE, SECOND_ATTEMPT_VARIABLE}
    assert plan.env["PROTO"] == "b"
    second = decode_contract(plan.env[SECOND_ATTEMPT_VARIABLE])
    assert second.as_typed == TypedCommand(env={"PROTO": "a"})


@pytest.mark.parametrize("line", ["--help", "--cubicml-mode off t.py"])
def test_other_commands_run_as_typed_without_a_line(folder: Path, line: str) -> None:
    given, rest = split_options(shlex.split(line))
    assert plan_launch(given, rest) == Plan(args=tuple(rest))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("--no-python ./train.sh", "train.sh is neither torchrun nor python"),
        ("--run-path t.py", "--run-path"),
        ("--nope 3 t.py", "unknown torchrun option --nope"),
        ("--cubicml-nope t.py", "unknown torchrun option --cubicml-nope"),
        ("--nproc_per_node 2", "names no script"),
        ("--cubicml-store foo://x t.py", "unknown protocol"),
        ("--no-python /nowhere/python t.py", "/nowhere/python does not start"),
    ],
)
def test_unrecordable_commands_run_as_typed_with_one_line(folder: Path, line: str, reason: str) -> None:
    given, rest = split_options(shlex.split(line))
    plan = plan_launch(given, rest)
    assert (plan.args, plan.env) == (tuple(rest), {})
    (line,) = plan.lines
    assert line.startswith("torchx-cubicml: running your command as typed, without recording it: ")
    assert reason in line


def test_a_python_without_the_package_runs_as_typed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = folder / "bare-python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    monkeypatch.setenv("PYTHON_EXEC", str(bare))
    plan = planned("t.py")
    assert plan.args == ("t.py",)
    assert "bare-python cannot load the recorder: No module named 'torchx_cubicml'" in plan.lines[0]


def test_an_internal_failure_is_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr("torchx_cubicml.rewrite.rewriter.rewrite", fail)
    (line,) = planned("t.py").lines
    assert line == "torchx-cubicml: running your command as typed, without recording it: ZeroDivisionError: a defect"


def test_a_store_that_never_answers_costs_its_deadline(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchx_cubicml.rewrite.rewriter.READ_DEADLINE_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        store = f"ftp://127.0.0.1:{silent.getsockname()[1]}/store"
        before = time.monotonic()
        plan = planned("--cubicml-space=space.toml", f"--cubicml-store={store}", *COMMAND)
        assert time.monotonic() - before < 30  # the server never answers
    assert plan.args[-len(COMMAND) :] == tuple(COMMAND)
    assert any("was not read within 0.3 s" in line for line in plan.lines)


@pytest.mark.parametrize("size", ["--nnodes 2 --nproc_per_node 2", "--nproc_per_node gpu", "--nproc-per-node=auto"])
def test_facts_known_only_in_the_job_are_decided_there(folder: Path, size: str) -> None:
    plan = planned("--cubicml-space", "space.toml", "--cubicml-store", "store", *shlex.split(size), *COMMAND)
    assert plan.args == (*shlex.split(size), "--", "-mtorchx_cubicml.rewrite.in_job", *COMMAND)
    assert plan.env == {
        "TORCHX_CUBICML_SPACE": str(folder / "space.toml"),
        "TORCHX_CUBICML_STORE": str(folder / "store"),
        "TORCHX_CUBICML_MODE": "rewrite",
        CONTRACT_VARIABLE: "",
    }
    kept = planned("--cubicml-keep-command", "--cubicml-space", "space.toml", *shlex.split(size), *COMMAND)
    assert kept.env["TORCHX_CUBICML_KEEP_COMMAND"] == "yes"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--nnodes 1:4 --cubicml", "the number of nodes (1:4) is known only when the job starts"),
        ("--nnodes 2 --nproc_per_node 2", ""),
    ],
    ids=["elastic", "several nodes in mode record"],
)
def test_an_unrewritten_launch_is_recorded(folder: Path, words: str, message: str) -> None:
    mode = "rewrite" if message else "record"
    size = shlex.split(words.removesuffix(" --cubicml"))
    plan = planned("--cubicml-space", "space.toml", "--cubicml-mode", mode, *size, *COMMAND)
    assert plan.args == (*size, "--", "-mtorchx_cubicml.recorder", *COMMAND)
    contract = decode_contract(plan.env[CONTRACT_VARIABLE])
    assert (contract.origin, contract.trial_id) == (Origin.USER, "")
    assert contract.config == {"micro_batch_size": 2, "gradient_accumulation_steps": 8}
    assert message in "\n".join(plan.lines)


def test_without_a_store_the_default_one_serves(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHX_CUBICML_STORE")
    assert decode_contract(planned("t.py").env[CONTRACT_VARIABLE]).store == default_store_url()


class BecomesAnotherError(Exception):
    """This process would be another now."""


def become(monkeypatch: pytest.MonkeyPatch, *words: str, refusals: int = 0) -> list[list[str]]:
    """Return the commands that the process tried to become, of which the system refuses the first."""
    tried: list[list[str]] = []

    def execve(path: str, argv: list[str], env: dict[str, str]) -> None:
        tried.append(argv)
        if len(tried) <= refusals:
            raise OSError(7, "Argument list too long")
        raise BecomesAnotherError

    monkeypatch.setattr("os.execve", execve)
    monkeypatch.setattr("sys.argv", ["cubicrun", *words])
    with pytest.raises(BecomesAnotherError):
        main()
    return tried


def test_a_recorded_command_that_is_too_long_runs_as_typed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded, typed = become(monkeypatch, "t.py", "1", refusals=1)
    assert recorded[4:] == ["--", "-mtorchx_cubicml.recorder", "t.py", "1"]
    assert typed[4:] == ["t.py", "1"]
    assert capsys.readouterr().err.endswith(
        "running your command as typed, without recording it: Argument list too long\n"
    )


def test_help_shows_our_options_before_those_of_torchrun(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (command,) = become(monkeypatch, "--help")
    assert command[1:3] == ["-P", "-c"]
    assert "from torch.distributed.run import main" in command[3]
    assert command[4:] == ["--help"]
    printed, error = capsys.readouterr()
    assert "--cubicml-space FILE" in printed
    assert error == ""


def test_without_a_script_one_line_shows_how_to_give_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["cubicrun", "--cubicml-mode", "off"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    usage, error = capsys.readouterr().err.splitlines()
    assert usage.startswith("usage: cubicrun ")
    assert error == "cubicrun: error: give a script to run, as in: cubicrun --nproc_per_node 2 train.py"


@pytest.mark.parametrize("name", ["accelerate", "mpirun", "python3"])
def test_a_launcher_without_the_hyphens_gets_a_hint(folder: Path, name: str) -> None:
    assert usage_error([name, "launch", "t.py"]).endswith(f"as in: cubicrun -- {name} launch ...")
    (folder / name).touch()
    assert usage_error([name, "launch", "t.py"]) == "", "a script of that name"
    assert usage_error(["train.py"]) == ""


def test_a_command_that_is_not_there_ends_as_in_a_shell(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["cubicrun", "--", "/nowhere/accelerate", "launch", "train.py"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 127
    why, error = capsys.readouterr().err.splitlines()
    assert why.endswith("there is no command /nowhere/accelerate")
    assert error == "cubicrun: error: /nowhere/accelerate does not start: No such file or directory"


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("--", "give a command behind --, as in: cubicrun -- accelerate launch train.py"),
        ("--cubicml-mode", "option --cubicml-mode lacks its value"),
        ("--cubicml-keep-command=yes", "option --cubicml-keep-command takes no value"),
        ("--cubicml-modes=off", "unknown option --cubicml-modes; choose from --cubicml-space, --cubicml-store, "),
    ],
)
def test_a_wrong_option_of_ours_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], word: str, expected: str
) -> None:
    monkeypatch.setattr("sys.argv", ["cubicrun", word])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"cubicrun: error: {expected}")


@pytest.mark.parametrize(
    ("options", "sentence", "arguments"),
    [
        (("--cubicml-space", "space.toml"), "with the recorder in front of the program", [*FASTEST[1:-1], "a $$b"]),
        (("--cubicml-mode", "off"), "as typed", COMMAND[1:]),
        (("--cubicml-space", "space.toml", "--nnodes", "2"), "and with the arguments that rank 0 ch", COMMAND[1:]),
        (("--no-such-option",), "as typed", COMMAND[1:]),
    ],
    ids=["rewritten", "off", "in the job", "not read"],
)
def test_a_dry_run_shows_the_command_and_starts_nothing(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    sentence: str,
    arguments: list[str],
) -> None:
    tried: list[object] = []
    monkeypatch.setattr("os.execve", lambda *words: tried.append(words))
    monkeypatch.setattr("sys.argv", ["cubicrun", "--cubicml-dryrun", *options, *COMMAND])
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code, tried) == (0, [])
    said = capsys.readouterr().err
    start = said.index("torchx-cubicml: torchrun would run")
    assert sentence in said[start:]
    _, *lines = said[start:].splitlines()
    words = shlex.split("".join(line.removesuffix("\\") for line in lines))
    assert words[0] == "torchrun"
    assert words[words.index(COMMAND[0]) :] == [COMMAND[0], *arguments]


def test_a_closed_stderr_stops_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", None)
    assert len(become(monkeypatch, "t.py")) == 1


# Real launches.

CUBICRUN = (sys.executable, "-m", "torchx_cubicml.cubicrun")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")


def start(launcher: tuple[str, ...], *words: str, **changes: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen([*launcher, *words], env={**os.environ, **changes}, stdout=pipe, stderr=pipe, text=True)


def fork(launcher: str, *words: str, **changes: str) -> ForkedProgram:
    """Start a launcher whose own start is not what is tested."""
    return ForkedProgram(launcher, *words, env={**os.environ, **changes})


def ended(process: subprocess.Popen[str] | ForkedProgram) -> tuple[int | None, str, str]:
    stdout, stderr = process.communicate(timeout=600)
    return process.returncode, stdout, stderr


def shown(folder: Path) -> dict[str, list[dict[str, object]]]:
    places = sorted((folder / "shown").iterdir())
    return {place.name: [json.loads(line) for line in place.read_text().splitlines()] for place in places}


def argv_of_all(folder: Path) -> list[object]:
    return [line["argv"] for lines in shown(folder).values() for line in lines]


def recorded(folder: Path, store: str = "store") -> Trial:
    (trial,) = [trial for trial in TrialStore(str(folder / store)) if trial.origin is not Origin.IMPORT]
    return trial


@pytest.mark.launch
def test_one_node_runs_the_best_known_config(folder: Path) -> None:
    options = ("--cubicml-space", "space.toml", "--nproc_per_node", "2", "--max_restarts", "1")
    process = start(CUBICRUN, *options, *COMMAND, "--fail-once")
    code, stdout, stderr = ended(process)
    assert (code, stdout) == (0, ""), stderr
    assert argv_of_all(folder) == [[*FASTEST, "--fail-once"]] * 4
    assert {line["agent"] for lines in shown(folder).values() for line in lines} == {process.pid}
    assert "torchx-cubicml: arguments rewritten, based on 4 launches of this workload" in stderr
    trial = recorded(folder)
    assert (trial.state, trial.attempts, trial.origin) == (State.COMPLETED, 2, Origin.REWRITE)


@pytest.mark.launch
def test_torchrun_reports_its_own_refusals(folder: Path) -> None:
    mine, theirs = (ended(start(launcher, "--nope", "3", *COMMAND)) for launcher in (CUBICRUN, TORCHRUN))
    assert mine[:2] == theirs[:2]
    ours, usage, *_, error = mine[2].splitlines()
    assert ours.startswith("torchx-cubicml: running your command as typed")
    assert usage.startswith("usage: cubicrun [-h] [--nnodes NNODES]")
    assert error == theirs[2].splitlines()[-1].replace("run.py:", "cubicrun:")


@pytest.mark.launch
@pytest.mark.parametrize("launcher", [CUBICRUN, TORCHRUN], ids=["cubicrun", "torchrun"])
def test_a_signal_ends_cubicrun_as_it_ends_torchrun(folder: Path, launcher: tuple[str, ...]) -> None:
    process = start(launcher, *COMMAND, "--wait")
    end = time.monotonic() + 300
    while not list((folder / "shown").iterdir()):
        assert time.monotonic() < end, "no job starts"
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    code, _, stderr = ended(process)
    assert code == 1
    assert "got signal: 15" in stderr


@pytest.mark.launch
@pytest.mark.parametrize(
    ("sent", "state"), [(signal.SIGTERM, State.INFRASTRUCTURE), (signal.SIGINT, State.STOPPED_EARLY)]
)
def test_a_signal_ends_a_command_as_it_ends_the_program(folder: Path, sent: signal.Signals, state: State) -> None:
    (folder / "wait.py").write_text("import time\nprint('started', flush=True)\ntime.sleep(600)\n")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has the tests in its background ignore it
    codes = []
    for cubicrun in ((), (*CUBICRUN, "--")):
        process = start(cubicrun, sys.executable, "wait.py")
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        process.send_signal(sent)
        codes.append(ended(process)[0])
    assert codes == [-sent, -sent]
    end, found = time.monotonic() + 300, []  # the writer of the recorder outlives the program
    while not found and time.monotonic() < end:
        trials = [trial for trial in TrialStore(str(folder / "store")) if trial.origin is not Origin.IMPORT]
        found = [trial.state for trial in trials if trial.state.ended]
        time.sleep(0.1)
    assert found == [state]


def two_nodes(kind: str) -> tuple[list[str], list[str]]:
    """Return torchrun's options for each of two agents on this machine."""
    port, size = os.environ["PET_MASTER_PORT"], "--nnodes 2 --nproc_per_node 1"
    if kind == "static":
        meeting = shlex.split(f"{size} --master_addr 127.0.0.1 --master_port {port}")
        return [*meeting, "--node_rank", "0"], [*meeting, "--node_rank", "1"]
    meeting = shlex.split(f"{size} --rdzv_backend c10d --rdzv_endpoint 127.0.0.1:{port} --rdzv_id job")
    patient = ["--rdzv_conf", "read_timeout=300,keep_alive_max_attempt=60"]  # a busy machine loses no node
    return [*meeting, *patient], [*meeting, *patient]


@pytest.mark.launch
@pytest.mark.parametrize("kind", ["static", "c10d"])
def test_two_nodes_run_what_one_of_them_decided(folder: Path, kind: str) -> None:
    """The nodes see different stores, which know different configs to be fastest, and still run the same."""
    fill(folder / "other", fastest=1)
    first, second = two_nodes(kind)
    space = ("--cubicml-space", "space.toml")
    processes = [
        fork("cubicrun", *space, *first, *COMMAND),
        fork("cubicrun", *space, "--cubicml-store", "other", *second, *COMMAND),
    ]
    ends = [ended(process) for process in processes]
    assert [code for code, _, _ in ends] == [0, 0], ends
    one, two = argv_of_all(folder)
    assert one == two
    store = "store" if one == FASTEST else "other"
    if kind == "static":
        assert one == FASTEST
    assert one != TYPED
    assert sum(stderr.count("arguments rewritten") for _, _, stderr in ends) == 1
    trial = recorded(folder, store)
    assert (trial.origin, trial.state, trial.fact("world_size")) == (Origin.REWRITE, State.COMPLETED, 2)


@pytest.mark.launch
def test_a_node_that_reaches_no_store_runs_what_rank_0_decided(folder: Path) -> None:
    first, second = two_nodes("static")
    space = ("--cubicml-space", "space.toml")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        nowhere = f"ftp://127.0.0.1:{silent.getsockname()[1]}/store"
        processes = [
            fork("cubicrun", *space, *first, *COMMAND),
            fork(
                "cubicrun", *space, "--cubicml-store", nowhere, *second, *COMMAND, TORCHX_CUBICML_WRITE_DEADLINE_S="1"
            ),
        ]
        ends = [ended(process) for process in processes]
    assert [code for code, _, _ in ends] == [0, 0], ends
    assert argv_of_all(folder) == [FASTEST, FASTEST]


@pytest.mark.launch
def test_nodes_run_the_same_while_their_store_changes(folder: Path) -> None:
    """Launches end elsewhere between the starts of the nodes, and while these meet: each makes another the fastest.

    Under c10d the node that comes last can have rank 0, too.
    """
    first, second = two_nodes("c10d")
    space = ("--cubicml-space", "space.toml")
    processes = [fork("cubicrun", *space, *first, *COMMAND)]
    for batch, speed in ((4, 20_000.0), (1, 50_000.0)):
        for _ in range(3):
            trial = Trial.completed(
                workload={"program": "show.py", "world_size": 2},
                config={"micro_batch_size": batch, "gradient_accumulation_steps": 16 // batch},
                tokens_per_second=speed,
            )
            TrialStore(str(folder / "store")).add(trial)
        if batch == 4:
            processes.append(fork("cubicrun", *space, *second, *COMMAND))
    ends = [ended(process) for process in processes]
    assert [code for code, _, _ in ends] == [0, 0], ends
    one, two = argv_of_all(folder)
    assert one == two
    assert sum(stderr.count("arguments rewritten") for _, _, stderr in ends) == (one != TYPED)


HELD = """
import os, sys, time

while (
    "torchx_cubicml.rewrite.in_job.decider" in sys.orig_argv
    and os.environ.get("RANK") == os.environ["HELD"]
    and not os.path.exists(os.environ["GO"])
):
    time.sleep(0.05)
"""


def children_of_rank(rank: str, folder: Path) -> dict[int, dict[str, str]]:
    """Return the environments of the processes that decide for a rank of the launch in ``folder``."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if b"torchx_cubicml.rewrite.in_job.decider" in (process / "cmdline").read_bytes():
                pairs = (process / "environ").read_text().split("\0")
                env = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
                if env.get("SHOWN") == str(folder / "shown") and env.get("RANK") == rank:
                    found[int(process.name)] = env
    return found


def kill_next_child(rank: str, folder: Path, killed: set[int]) -> None:
    """Kill a process that decides for a rank once that rank has come, which the others then count on."""
    end = time.monotonic() + 300
    while not (fresh := {pid: env for pid, env in children_of_rank(rank, folder).items() if pid not in killed}):
        assert time.monotonic() < end, "nobody decides"
        time.sleep(0.05)
    ((pid, env),) = fresh.items()
    meeting = TCPStore(env["MASTER_ADDR"], int(env["MASTER_PORT"]), is_master=False, timeout=timedelta(seconds=30))
    while not meeting.check([f"torchx_cubicml/decision/0.0/rank{rank}"]):
        assert time.monotonic() < end, "the rank does not come"
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    killed.add(pid)


@pytest.mark.launch
@pytest.mark.parametrize(("kind", "victim", "times"), [("static", "1", 3), ("static", "0", 1)])
def test_a_child_that_dies_late_changes_nothing(folder: Path, kind: str, victim: str, times: int) -> None:
    """The other rank's child waits at its start until the victim's was killed each time."""
    (folder / "held").mkdir()
    (folder / "held" / "sitecustomize.py").write_text(HELD)
    held = {"PYTHONPATH": str(folder / "held"), "HELD": str(1 - int(victim)), "GO": str(folder / "go")}
    space = ("--cubicml-space", "space.toml")
    nodes = [fork("cubicrun", *space, *node, *COMMAND, **held) for node in two_nodes(kind)]
    killed: set[int] = set()
    for _ in range(times):
        kill_next_child(victim, folder, killed)
    (folder / "go").touch()
    ends = [ended(node) for node in nodes]
    assert [code for code, _, _ in ends] == [0, 0], ends
    assert len(killed) == times
    assert argv_of_all(folder) == [FASTEST, FASTEST], ends


@pytest.mark.launch
@pytest.mark.parametrize("cause", ["store of rank 0 hangs", "node without cubicrun"])
def test_past_the_deadline_all_ranks_run_as_typed(folder: Path, cause: str) -> None:
    first, second = two_nodes("static")
    space = ("--cubicml-space", "space.toml")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        nowhere = f"ftp://127.0.0.1:{silent.getsockname()[1]}/store"
        if cause == "node without cubicrun":
            processes = [
                fork("cubicrun", *space, *first, *COMMAND, TORCHX_CUBICML_DECISION_DEADLINE_S="5"),
                fork("torchrun", *second, *COMMAND),
            ]
        else:
            late = {"TORCHX_CUBICML_DECISION_DEADLINE_S": "4", "TORCHX_CUBICML_WRITE_DEADLINE_S": "1"}
            processes = [
                fork("cubicrun", *space, "--cubicml-store", nowhere, *first, *COMMAND, **late),
                fork("cubicrun", *space, *second, *COMMAND, **late),
            ]
        ends = [ended(process) for process in processes]
    assert [code for code, _, _ in ends] == [0, 0], ends
    assert argv_of_all(folder) == [TYPED, TYPED]
    reasons = [line for line in ends[0][2].splitlines() if "keeping your arguments: " in line]
    assert len(reasons) == 1, ends[0][2]
    if cause == "node without cubicrun":
        # On a machine under load rank 0 itself can take as long.
        pattern = "only 1 of 2 ranks joined in time|the decision took too long|torchrun's store took longer than"
        assert re.search(pattern, reasons[0])
        assert recorded(folder).origin is Origin.USER


@pytest.mark.launch
def test_a_declared_log_format_gives_the_throughput(folder: Path) -> None:
    declared = """
[log]
pattern = 'it +(?P<step>[0-9]+)/.*speed: (?P<speed>[0-9,.]+) tok/s/gpu'
groups = { tokens_per_second_per_device = "speed" }
"""
    (folder / "printing.toml").write_text(f'[parameters.a]\nchoices = [1, 2]\nflag = "--a"\n{declared}')
    job = Path(__file__).parent / "jobs" / "train_printing.py"
    words = (
        "--cubicml-space",
        "printing.toml",
        "--cubicml-store",
        "own",
        "--nproc_per_node",
        "2",
        str(job),
        "--a",
        "1",
    )
    code, stdout, stderr = ended(fork("cubicrun", *words))
    assert code == 0, stderr
    assert stdout.count("tok/s/gpu") == 24
    (trial,) = TrialStore(str(folder / "own"))
    measured = trial.measurement
    assert measured is not None
    assert (measured.source, measured.steps_counted, measured.warmup_steps) == ("space file", 9, 3)
    assert measured.tokens_per_second == pytest.approx(2 * 12_308.0, rel=1e-3)
    assert measured.samples_per_second is None
    assert (trial.state, trial.config) == (State.COMPLETED, {"a": 1})
