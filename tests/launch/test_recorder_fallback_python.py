from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from torchx.specs import Role, macros

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.launch import workload_of
from torchx_cubicml.launch.place_config import second_attempt
from torchx_cubicml.launch.recorder_fallback import fallback_arguments
from torchx_cubicml.launch.role import read_role
from torchx_cubicml.records.contract import CONTRACT_VARIABLE, SECOND_ATTEMPT_VARIABLE, Contract, encode_contract
from torchx_cubicml.records.trial import Origin

SHOW = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ.get('NCCL_PROTO'), os.getpid()])); sys.exit(7)"
WORDS = ["a b", "", "it's", '"; rm -rf /', "`id`", "line\nbreak", "é", "--x=1"]


def start(
    folder: Path, *, python: list[str], picks: bool = False, variables: dict[str, str] | None = None, **env: str
) -> subprocess.Popen[str]:
    """Start what a role would, in a place without a shell or any other program."""
    arguments = fallback_arguments(
        python=python,
        picks_python=picks,
        wrapped=[sys.executable, "-c", SHOW, "wrapped", *WORDS],
        typed=[sys.executable, "-c", SHOW, "typed", *WORDS],
        variables=variables or {},
    )
    pipe = subprocess.PIPE
    environment = {"PATH": str(folder), "NCCL_PROTO": "mine", **env}
    return subprocess.Popen(
        [sys.executable, *arguments], env=environment, cwd=folder, stdout=pipe, stderr=pipe, text=True
    )


def ended(process: subprocess.Popen[str]) -> tuple[list[str], str | None, str]:
    stdout, stderr = process.communicate(timeout=600)
    words, proto, pid = json.loads(stdout)
    assert process.returncode == 7
    assert pid == process.pid, "signals reach the launcher itself"
    assert words[1:] == WORDS
    return words[0], proto, stderr


def test_the_wrapped_command_runs_where_the_python_can_record(tmp_path: Path) -> None:
    process = start(tmp_path, python=[sys.executable], variables={"NCCL_PROTO": "a=b 'c'"})
    assert ended(process) == ("wrapped", "a=b 'c'", "")


@pytest.mark.parametrize(
    ("python", "message"),
    [([sys.executable, "-I", "-S"], "No module named 'torchx_cubicml'"), (["/nowhere/python"], "No such file")],
    ids=["without the package", "not there"],
)
def test_a_python_that_cannot_record_runs_the_command_as_typed(tmp_path: Path, python: list[str], message: str) -> None:
    word, proto, stderr = ended(start(tmp_path, python=python, variables={"NCCL_PROTO": "ours"}))
    assert (word, proto, stderr.count("\n")) == ("typed", "mine", 1)
    assert stderr.startswith(
        "torchx-cubicml: running your command as typed, without recording it: its Python cannot load"
    )
    assert message in stderr


def test_another_contract_version_runs_the_command_as_typed(package_of_another_version: Path) -> None:
    word, _, stderr = ended(start(package_of_another_version, python=[sys.executable]))
    assert word == "typed"
    assert "its recorder reads contract version 999" in stderr


def test_the_python_that_torchrun_will_pick_is_asked(tmp_path: Path) -> None:
    picked = {"PYTHON_EXEC": "/nowhere/python"}
    assert ended(start(tmp_path, python=[sys.executable], picks=True, **picked))[0] == "typed"
    assert ended(start(tmp_path, python=[sys.executable], picks=False, **picked))[0] == "wrapped"


@pytest.mark.parametrize("text", ["raise SystemExit(3)", "import os; os._exit(0)", "1 / 0"])
def test_modules_in_the_working_directory_are_not_imported(tmp_path: Path, text: str) -> None:
    for name in ("os", "sys", "subprocess", "json", "re", "signal"):
        (tmp_path / f"{name}.py").write_text(text)
    process = start(tmp_path, python=[sys.executable, "-I", "-S"])
    stdout, stderr = process.communicate(timeout=600)
    # The program itself, a -c here, meets them as it would without us.
    assert "running your command as typed" in stderr
    assert "wrapped" not in stdout


def test_a_failing_wrapped_command_falls_back_to_the_typed_one(tmp_path: Path) -> None:
    arguments = fallback_arguments(
        python=[sys.executable],
        picks_python=False,
        wrapped=["/nowhere/python"],
        typed=[sys.executable, "-c", "print(5)"],
        variables={},
    )
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=600, check=True)
    assert done.stdout == "5\n"
    assert "No such file" in done.stderr


def test_no_illegal_variable_is_set() -> None:
    with pytest.raises(LaunchError, match="invalid environment variable name"):
        fallback_arguments(python=[], picks_python=False, wrapped=[], typed=[], variables={"A;B": ""})


@pytest.mark.launch
def test_a_role_of_python_runs_in_a_place_without_a_shell(tmp_path: Path) -> None:
    """Through TorchX's own macro substitution; options of Python, values with $ and a changed value arrive."""
    (tmp_path / "t.py").write_text("import json, sys; print(json.dumps([sys.argv[1:], sys.flags.optimize]))")
    role = Role(name="t", image="", entrypoint=sys.executable, args=["-O", "t.py", "${app_id}", "$$5", "--x", "1"])
    command = read_role(role)
    assert [word.value for word in command.script_words] == ["${app_id}", "$5", "--x", "1"]
    role.entrypoint, role.args = command.wrapped(["${app_id}", "$5", "--x", "a$b 'c'"], {})
    assert role.entrypoint == sys.executable
    values = macros.Values(img_root="", app_id="app-7", replica_id="0", base_img_root="", rank0_env="")
    applied = values.apply(role)
    done = subprocess.run(
        [applied.entrypoint, *applied.args],
        cwd=tmp_path,
        env={"PATH": str(tmp_path), "TORCHX_CUBICML_LAUNCH": ""},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    shown = json.loads(done.stdout.splitlines()[0])
    assert shown == [["app-7", "$5", "--x", "a$b 'c'"], 1], done.stderr


FAILS_AT_TWO = "import sys; print('x', sys.argv[2], flush=True); assert sys.argv[2] != '2'"
TORCHRUN = "python -m torch.distributed.run --master_port {port} -m train --x 1"


@pytest.fixture
def pythons(tmp_path: Path) -> Path:
    """Make a Python named ``python`` and another named ``picked``, which note in a file ``called`` that they run."""
    (tmp_path / "train.py").write_text(FAILS_AT_TWO)
    for name in ("python", "picked"):
        script = tmp_path / name
        script.write_text(f'#!/bin/sh\necho "{name} $*" >>{tmp_path}/called\nexec {sys.executable} "$@"\n')
        script.chmod(0o755)
    return tmp_path


def run_rewritten(
    line: str, folder: Path, *, in_shell: bool, is_picked: bool
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Run a role as TorchX does, with ``--x 2`` for its ``--x 1``; return which Python ran what, besides the guard."""
    first, *more = line.split()
    made = Role(name="t", image="", entrypoint=first, args=more)
    if in_shell:
        made = Role(name="t", image="", entrypoint="sh", args=["-c", line])
    command = read_role(made)
    typed = command.launch(env={}, device="", obstacle="")
    contract = Contract(store=str(folder / "store"), workload=workload_of(typed), origin=Origin.REWRITE)
    second = second_attempt(contract, typed=typed, wanted=typed)
    made.entrypoint, made.args = command.wrapped(["--x", "2"], {}, second_attempt=command if second else None)
    values = macros.Values(img_root="", app_id="app-7", replica_id="0", base_img_root="", rank0_env="")
    applied = values.apply(made)
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(folder), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "OMP_NUM_THREADS": "1",
        CONTRACT_VARIABLE: encode_contract(contract),
        **({SECOND_ATTEMPT_VARIABLE: encode_contract(second)} if second else {}),
        **({"PYTHON_EXEC": str(folder / "picked")} if is_picked else {}),
    }
    done = subprocess.run(
        [applied.entrypoint, *applied.args],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    return done, re.findall(
        r"^(?:python|picked) (?:-[uP] )?(?:-c import|-m ?\S+)", (folder / "called").read_text(), re.MULTILINE
    )


@pytest.mark.launch
@pytest.mark.parametrize("is_picked", [False, True], ids=["unset", "set"])
@pytest.mark.parametrize("in_shell", [False, True], ids=["no shell", "shell"])
def test_python_exec_names_the_python_of_both_attempts(
    pythons: Path, free_port: int, in_shell: bool, is_picked: bool
) -> None:
    done, ran = run_rewritten(TORCHRUN.format(port=free_port), pythons, in_shell=in_shell, is_picked=is_picked)
    assert (done.returncode, done.stdout) == (0, "x 2\nx 1\n"), done.stderr
    assert "failed before its first measured steps; starting again as you typed it" in done.stderr
    agent = "picked" if is_picked else "python"
    ranks = ["picked -u -mtorchx_cubicml.recorder"] * 2 if is_picked else []  # else named by torchrun's full path
    assert ran == [f"{agent} -c import", f"{agent} -m torchx_cubicml.recorder.torchrun", *ranks]


@pytest.mark.launch
def test_torchrun_without_a_shell_gets_one_and_a_second_attempt(pythons: Path, free_port: int) -> None:
    line = f"torchrun --master_port {free_port} -m train --x 1"
    done, ran = run_rewritten(line, pythons, in_shell=False, is_picked=True)
    assert (done.returncode, done.stdout) == (0, "x 2\nx 1\n"), done.stderr
    ranks = ["picked -u -mtorchx_cubicml.recorder"] * 2
    assert ran == ["picked -c import", "picked -P -m torchx_cubicml.recorder.torchrun", *ranks]


@pytest.mark.launch
@pytest.mark.parametrize("in_shell", [False, True], ids=["no shell", "shell"])
def test_python_exec_names_no_other_python_without_torchrun(pythons: Path, in_shell: bool) -> None:
    done, ran = run_rewritten("python -m train --x 1", pythons, in_shell=in_shell, is_picked=True)
    assert (done.returncode, done.stdout) == (1, "x 2\n"), "without torchrun there is no second attempt"
    assert "AssertionError" in done.stderr
    assert ran == ["python -c import", "python -mtorchx_cubicml.recorder"]
