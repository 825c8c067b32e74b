from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spaces import BATCH_SIZES
from torchx_cubicml.cubicrun import plan_launch
from torchx_cubicml.records.trial import State, Trial
from torchx_cubicml.store import TrialStore

if TYPE_CHECKING:
    from collections.abc import Mapping

BIN = Path(sys.executable).parent
SHOW = """
import json, os, sys
own = ("TORCHX_CUBICML", "_")
shown = {name: value for name, value in os.environ.items() if not name.startswith(own)}
if "PYTHONPATH" in shown:  # a Python that is not the one looked for has our folder there
    shown["PYTHONPATH"] = shown["PYTHONPATH"].rpartition("recorder/behind:")[2]
site = getattr(sys, "of_the_user", None), "sitecustomize" in sys.modules
print(json.dumps([sys.argv, sys.path, shown, site, os.getpgrp() == os.getpid()], sort_keys=True), flush=True)
if "fail" in sys.argv:
    raise ValueError("as asked")
if "ends" in sys.argv:
    sys.exit(9)
"""
CONSOLE_SCRIPT = """#!{python}
import sys
from tool_of_mine import main
if __name__ == "__main__":
    sys.exit(main())
"""
# As pip and uv write it where the path of Python is long.
FAR_PYTHON = "#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n"
TOOL = """
import runpy, sys
def main():
    sys.argv = sys.argv[2:]
    runpy.run_path(sys.argv[0], run_name="__main__")
"""
FILES = {
    "show.py": SHOW,
    "run.sh": '#!/bin/bash\necho "$@"; exit 3\n',
    "plain": "echo no first line $1\n",
    "with": '#!/bin/sh\n"$@"\n',
    "again": '#!/bin/sh\neval "$*"\n',
    "train": f"#!{sys.executable}\n{SHOW}",
    "bin/tool": CONSOLE_SCRIPT.format(python=sys.executable),
    "bin/far": CONSOLE_SCRIPT.replace("#!{python}\n", FAR_PYTHON).format(python=sys.executable),
    "lib/tool_of_mine.py": TOOL,
    "lib/sitecustomize.py": "import sys\nsys.of_the_user = 'site'\n",
    "space.toml": BATCH_SIZES,
}
RECORDED = (
    "env A=1 python show.py x --lr 1",
    "nice -n 1 python show.py",
    "timeout 60 python -u show.py 'a b' '$HOME'",
    "nohup python show.py",
    "setsid -w python3 show.py",
    "stdbuf -oL python show.py fail",
    "env -u NOTHING timeout 60 nice python show.py ends",
    "xargs -a /dev/null python show.py",
    "./with python show.py 'a b'",
    "./again python show.py a",
    "./with python missing.py",
    "./with python -m json.tool space.json",
    "./train x",
    "tool run show.py --lr 1",
    "far run show.py --lr 1",
)
UNRECORDED = (
    "env A=1 tool run show.py",
    "bash run.sh a 'b c'",
    "./run.sh a",
    "./plain a",
    "sh -c 'echo $0 $1; exit 7' a b",
    "sh -c 'kill -TERM $$'",
    "sh -c 'kill -KILL $$'",
    "bash -c 'yes | head -1; echo ${PIPESTATUS[@]}'",
    "true",
    "false",
    "cat",
    "env",
    "no-such-command a",
    "./not-executable.sh",
    "./lib",
    "timeout 0.1 sleep 5",
    "xargs python show.py",
    "env -i python show.py",
    "env PYTHONPATH= python show.py",
    "env python -c 'print(1)'",
    "sh -c 'exec python show.py x'",
    "env A=1 python -I show.py",
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755 if text.startswith("#!") or name == "plain" else 0o644)
    (tmp_path / "not-executable.sh").write_text("#!/bin/sh\n")
    (tmp_path / "space.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{BIN}:{os.environ['PATH']}")
    monkeypatch.setenv("TORCHX_CUBICML_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("TORCHX_CUBICML_CACHE", "off")
    for name in ("TORCHX_CUBICML_SPACE", "TORCHX_CUBICML_MODE", "PYTHONPATH", "LC_ALL", "LC_CTYPE", "LANG"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def outcome(words: list[str], **variables: str) -> tuple[int, str, str]:
    """Return exit status, output and errors of a command, without our own lines and the names of missing commands."""
    done = subprocess.run(
        words,
        input="a b\n",
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": "lib", **variables},
    )
    lines = [line for line in done.stderr.splitlines() if not line.startswith("torchx-cubicml: ")]
    return done.returncode, "\n".join(sorted(done.stdout.splitlines())), "\n".join(lines)


def as_the_shell(line: str) -> tuple[int, str, str]:
    """Return the outcome of a command line; a command that does not start ends as in a shell."""
    try:
        return outcome(shlex.split(line))
    except FileNotFoundError:
        return 127, "", ""
    except PermissionError:
        return 126, "", ""
    except OSError:  # what has no first line runs in the shell
        return outcome(["/bin/sh", *shlex.split(line)])


def recorded(folder: Path) -> list[Trial]:
    return list(TrialStore(str(folder / "store"))) if (folder / "store").exists() else []


@pytest.mark.launch
@pytest.mark.parametrize("line", [*RECORDED, *UNRECORDED])
def test_any_command_ends_as_without_us(folder: Path, line: str) -> None:
    status, output, errors = as_the_shell(line)
    ours = outcome(["cubicrun", "--", *shlex.split(line)])
    assert ours[:2] == (status, output)
    assert ours[2].endswith(errors)
    trials = recorded(folder)
    assert [trial.state.ended for trial in trials] == [True] * (line in RECORDED)
    if line in RECORDED:
        failed = State.USER_ERROR if status else State.COMPLETED
        assert [trial.state for trial in trials] == [failed]


@pytest.mark.launch
@pytest.mark.parametrize("line", ["env A=1 cubicrun -- python show.py x", "./with cubicrun -- python show.py x"])
def test_a_cubicrun_inside_records_the_launch(folder: Path, line: str) -> None:
    status, output, _ = outcome(["cubicrun", "--", *line.split()])
    assert (status, json.loads(output)[2].get("PYTHONPATH")) == (0, "lib")
    assert [trial.state for trial in recorded(folder)] == [State.COMPLETED]


@pytest.mark.launch
def test_a_console_script_is_compared_by_the_program_that_it_runs(folder: Path) -> None:
    for line in ("tool run show.py", "tool run ./train.py --lr 1", "tool check 7 --lr 1"):
        (folder / "train.py").write_text(SHOW)
        outcome(["cubicrun", "--", *line.split()])
    assert {str(trial.workload["program"]) for trial in recorded(folder)} == {"show.py", "train.py", "tool check 7"}


@pytest.mark.launch
def test_a_python_without_the_package_runs_as_typed(folder: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "other"], check=True)
    words = ["env", f"PATH={folder}/other/bin:{os.environ['PATH']}", "python", "show.py"]
    plain = outcome(words)
    done = subprocess.run(["cubicrun", "--", *words], capture_output=True, text=True, check=False)
    assert (done.returncode, json.loads(done.stdout)[0]) == (plain[0], json.loads(plain[1])[0])
    assert "as typed, without recording it: its Python cannot load the recorder: No module named" in done.stderr
    assert recorded(folder) == []


@pytest.mark.launch
def test_each_start_behind_a_command_is_a_trial(folder: Path) -> None:
    (folder / "twice").write_text('#!/bin/sh\n"$@"\n"$@"\n')
    (folder / "twice").chmod(0o755)
    outcome(["cubicrun", "--", "./twice", "python", "show.py"])
    assert [trial.state for trial in recorded(folder)] == [State.COMPLETED] * 2


@pytest.fixture
def fast(folder: Path) -> Path:
    """Make a store that knows 8 to be the fastest batch."""
    for batch in (1, 2, 4, 8):
        config = {"micro_batch_size": batch, "gradient_accumulation_steps": 16 // batch}
        speed = 9000.0 if batch == 8 else 1000.0 + batch
        for world_size in (1, 2):
            workload = {"program": "show.py", "world_size": world_size}
            trial = Trial.completed(workload=workload, config=config, tokens_per_second=speed)
            TrialStore(str(folder / "store")).add(trial)
    return folder


@pytest.mark.launch
def test_a_launch_behind_a_command_is_rewritten(fast: Path) -> None:
    line = "timeout 60 python show.py --batch_size 2 --accumulate 8"
    _, output, _ = outcome(["cubicrun", "--cubicml-space", "space.toml", "--", *line.split()])
    assert json.loads(output)[0] == ["show.py", "--batch_size", "8", "--accumulate", "2"]


@pytest.mark.parametrize(
    ("line", "becomes"),
    [
        ("nice torchrun --nproc_per_node 2 show.py {}", [None, "--nproc_per_node", "2", "--", "-mRECORDER", "show.py"]),
        ("uv run accelerate launch --cpu show.py {}", [None, "launch", "--cpu", "--", "-mRECORDER", "show.py"]),
        ("env A=1 mpirun -np 2 python -u show.py {}", ["-u", "-mRECORDER", "show.py"]),
        ("tool show.py {}", ["-mRECORDER", None, "show.py"]),
    ],
)
def test_the_python_of_a_launcher_becomes_the_recorded_command(
    fast: Path, line: str, becomes: list[str | None]
) -> None:
    typed, written = ["--batch_size", "2", "--accumulate", "8"], ["--batch_size", "8", "--accumulate", "2"]
    words = line.format(" ".join(typed)).split()
    plan = plan_launch({"space": "space.toml"}, ["--", *words])
    assert plan.command == words
    found = json.loads(plan.env["TORCHX_CUBICML_BEHIND"])
    named = [word and word.replace("torchx_cubicml.recorder", "RECORDER") for word in found["recorded"]]
    assert named == [*becomes, *written]
    assert found["typed"][-4:] == typed


def test_variables_in_front_of_a_launcher_are_those_of_the_launch(folder: Path) -> None:
    (folder / "space.toml").write_text(
        '[parameters.threads]\nchoices = [1, 2, 4]\nenv = "OMP_NUM_THREADS"\ndefault = 1\n'
    )
    plan = plan_launch({"space": "space.toml"}, ["--", "env", "OMP_NUM_THREADS=4", "python", "show.py"])
    assert contract_of(plan.env)["config"] == {"threads": 4}


def contract_of(variables: Mapping[str, str]) -> dict[str, object]:
    from torchx_cubicml.records.contract import CONTRACT_VARIABLE, decode_contract

    found = json.loads(variables["TORCHX_CUBICML_BEHIND"])
    contract = decode_contract(found["variables"][CONTRACT_VARIABLE])
    return {"config": dict(contract.config), "workload": dict(contract.workload)}
