from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.launch.recorder_fallback import MAX_LINE, fallback_line, probe_condition

if TYPE_CHECKING:
    from pathlib import Path

TYPED = "sh -c 'echo typed; exit 7'"
WRAPPED = "sh -c 'echo wrapped $NCCL_PROTO; exit 7'"


def run(
    line: str, *, path: Path | None = None, shell: str = "bash", flags: str = "-c", **env: str
) -> subprocess.CompletedProcess[str]:
    places = os.pathsep.join([str(path), os.environ["PATH"]] if path else [os.environ["PATH"]])
    environment = {"PATH": places, "HOME": "/nowhere", **env}
    return subprocess.run([shell, flags, line], env=environment, cwd="/", capture_output=True, text=True, check=False)


def line_for(probe: str, **variables: str) -> str:
    return fallback_line(probe=probe, wrapped=WRAPPED, typed=TYPED, variables=variables)


def put_script(path: Path, text: str, first_line: str = "#!/bin/sh") -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"{first_line}\n{text}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(("shell", "flags"), [("bash", "-c"), ("sh", "-c"), ("bash", "-euc"), ("bash", "-lc")])
def test_the_wrapped_command_runs_where_the_python_can_record(shell: str, flags: str) -> None:
    done = run(line_for(probe_condition(python=sys.executable), NCCL_PROTO="it's $5"), shell=shell, flags=flags)
    assert (done.stdout, done.returncode, done.stderr) == ("wrapped it's $$5\n", 7, "")


def test_a_python_without_the_package_runs_as_typed() -> None:
    done = run(line_for(probe_condition(python=f"{sys.executable} -I -S"), NCCL_PROTO="LL"), NCCL_PROTO="mine")
    assert (done.stdout, done.returncode) == ("typed\n", 7)
    assert done.stderr == (
        "torchx-cubicml: running your command as typed, without recording it: its Python cannot load the recorder: "
        "No module named 'torchx_cubicml'\n"
    )


def test_another_contract_version_runs_the_command_as_typed(package_of_another_version: Path) -> None:
    done = run(line_for(probe_condition(python=f"{sys.executable} -S")), PYTHONPATH=str(package_of_another_version))
    assert done.stdout == "typed\n"
    assert done.stderr.endswith("its recorder reads contract version 999, this launch wrote 1\n")
    assert done.stderr.count("\n") == 1


def test_a_python_that_is_not_there_runs_the_command_as_typed() -> None:
    done = run(line_for(probe_condition(python="/nowhere/python")))
    assert (done.stdout, done.returncode) == ("typed\n", 7)
    assert "/nowhere/python" in done.stderr


def test_without_a_torchrun_the_command_runs_as_typed() -> None:
    done = run(line_for(probe_condition(torchrun="/nowhere/torchrun")))
    assert (done.stdout, done.returncode, done.stderr.count("\n")) == ("typed\n", 7, 1)


@pytest.mark.parametrize(
    "first_line",
    [
        f"#!{sys.executable}",
        f"#! {sys.executable}",
        "#!/usr/bin/env python-of-the-test",
        "#!/bin/sh",
        "",
    ],
    ids=["its own first line", "with a blank", "env", "a shell: the Python beside it", "none: the Python beside it"],
)
def test_the_python_of_torchrun_is_found(tmp_path: Path, first_line: str) -> None:
    folder = tmp_path / "bin"
    put_script(folder / "torchrun", "exit 3", first_line)
    put_script(folder / ("python-of-the-test" if "python" in first_line else "python"), f'exec {sys.executable} "$@"')
    done = run(line_for(probe_condition(torchrun="torchrun")), path=folder)
    assert (done.stdout, done.stderr) == ("wrapped\n", "")


def test_python_exec_decides_as_it_does_for_torchrun(tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    put_script(folder / "torchrun", "exit 3", f"#!{sys.executable}")
    put_script(folder / "bare", f'exec {sys.executable} -I -S "$@"')
    done = run(line_for(probe_condition(torchrun="torchrun")), path=folder, PYTHON_EXEC=str(folder / "bare"))
    assert done.stdout == "typed\n"
    by_module = probe_condition(python=sys.executable, honours_override=True)
    assert run(line_for(by_module), PYTHON_EXEC=str(folder / "bare")).stdout == "typed\n"
    assert run(line_for(by_module)).stdout == "wrapped\n"


def test_signals_reach_the_launcher_itself() -> None:
    line = fallback_line(
        probe=probe_condition(python=sys.executable), wrapped="sh -c 'echo $PPID $$'", typed="false", variables={}
    )
    with subprocess.Popen(["bash", "-c", line], stdout=subprocess.PIPE, text=True) as process:
        out, _ = process.communicate()
    assert out.split() == [str(os.getpid()), str(process.pid)]


def test_the_line_is_one_line_and_safe_from_macros() -> None:
    from torchx.specs import macros

    line = line_for(probe_condition(torchrun="torchrun"))
    values = macros.Values(img_root="I", app_id="A", replica_id="R", rank0_env="E")
    assert "\n" not in line
    assert values.substitute(line) == line


def test_too_long_a_line_is_refused() -> None:
    with pytest.raises(LaunchError, match=f"the limit is {MAX_LINE}"):
        fallback_line(probe="if true; ", wrapped="w", typed="t" * MAX_LINE, variables={})


@pytest.mark.parametrize("name", ["A-B", "1X", "X;rm", ""])
def test_a_variable_needs_a_legal_name(name: str) -> None:
    with pytest.raises(LaunchError, match="invalid environment variable name"):
        line_for(probe_condition(python="python"), **{name: "1"})


def test_a_command_need_be_no_text() -> None:
    line = fallback_line(
        probe=probe_condition(python=sys.executable), wrapped="echo a", typed="cat gr\udcff", variables={}
    )
    assert os.fsencode(line).endswith(b"exec cat gr\xff")


def test_a_line_may_have_as_many_bytes_as_the_limit() -> None:
    def line(more: int) -> str:
        return fallback_line(probe="if true; ", wrapped="w", typed="é" * 3 + "t" * more, variables={})

    room = MAX_LINE - len(line(0).encode())
    assert len(line(room).encode()) == MAX_LINE
    with pytest.raises(LaunchError, match=f"has {MAX_LINE + 1} bytes; the limit is {MAX_LINE}"):
        line(room + 1)


def test_several_variables_are_exported_in_turn() -> None:
    line = fallback_line(probe="if true; ", wrapped="w", typed="t", variables={"A": "1", "B_2": "x y"})
    assert "then export A=1; export B_2='x y'; exec w; fi; " in line


def test_only_an_override_that_counts_is_asked() -> None:
    assert probe_condition(python="p").startswith("if cubicml_why=$(p -c ")
    assert probe_condition(python="p", honours_override=True).startswith("if cubicml_why=$(${PYTHON_EXEC:-p} -c ")
