from __future__ import annotations

import re
import shlex

import pytest
from torchx.specs import Role

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.launch.role import read_role
from torchx_cubicml.launch.torchrun_command import RECORDER


def role(entrypoint: str, *args: str, replicas: int = 1, least: int | None = None) -> Role:
    return Role(
        name="train", image="", entrypoint=entrypoint, args=list(args), num_replicas=replicas, min_replicas=least
    )


def commands_in(line: str) -> list[str]:
    """Return what the guarded line runs: the wrapped command, then the one as typed."""
    return [part.split("; fi;")[0].strip() for part in line.split("exec ")[-2:]]


@pytest.mark.parametrize(
    ("typed", "wrapped"),
    [
        ("torchrun --nnodes 1 train.py --lr 1", f"torchrun --nnodes 1 -- -m{RECORDER} train.py --lr 1"),
        ("torchrun -m pkg.train --lr 1", f"torchrun -- -m{RECORDER} -m pkg.train --lr 1"),
        ("torchrun --nnodes 1 -- train.py x", f"torchrun --nnodes 1 -- -m{RECORDER} train.py x"),
        ("torchrun train.py -- x", f"torchrun -- -m{RECORDER} train.py x"),
        ("torchrun --no-python python -u t.py x", f"torchrun --no-python python -u -m{RECORDER} t.py x"),
        ("python -u train.py -- x", f"python -u -m{RECORDER} train.py -- x"),
        ("python -m pkg.train", f"python -m{RECORDER} -m pkg.train"),
        ("python -m torch.distributed.run t.py", f"python -m torch.distributed.run -- -m{RECORDER} t.py"),
        (
            "torchrun --rdzv_endpoint $${${rank0_env}:=localhost}:29500 --rdzv_id '${app_id}' t.py '$$x' \"$HOME\"",
            "torchrun --rdzv_endpoint $${${rank0_env}:=localhost}:29500 --rdzv_id '${app_id}' "
            f"-- -m{RECORDER} t.py '$$x' \"$HOME\"",
        ),
    ],
)
def test_the_line_holds_both_commands(typed: str, wrapped: str) -> None:
    command = read_role(role("bash", "-c", typed))
    entrypoint, (option, line) = command.wrapped([word.value for word in command.script_words], {})
    assert (entrypoint, option) == ("bash", "-c")
    assert commands_in(line) == [wrapped, typed]


@pytest.mark.parametrize(("line", "seen"), [("torchrun t.py '$$$$5'", "$5"), ("python t.py '$$$$5'", "$$5")])
def test_values_are_those_that_the_script_sees(line: str, seen: str) -> None:
    command = read_role(role("bash", "-c", line))
    assert [word.value for word in command.script_words] == [seen]
    assert command.as_seen("$$$$5") == seen
    assert command.as_seen(command.as_typed("a $b $$")) == "a $b $$"


def without_shell(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Return the options of Python, and the words of the guard in its four groups joined: probe, wrapped, typed."""
    guard = arguments.index("-c")
    return arguments[:guard], arguments[guard + 2 :]


def test_a_python_role_without_a_shell_keeps_its_arguments() -> None:
    typed = ["/opt/my venv/bin/python", "-u", "-m", "pkg.train", "a b", "${app_id}", "$$5"]
    command = read_role(role(*typed))
    entrypoint, arguments = command.wrapped([word.value for word in command.script_words], {"X": "$1"})
    options, words = without_shell(arguments)
    assert (entrypoint, options) == (typed[0], ["-u"])
    assert words[:4] == ["1", "X=$$1", "4", typed[0]]
    wrapped = [typed[0], "-u", f"-m{RECORDER}", "-m", "pkg.train", "a b", "${app_id}", "$$5"]
    assert words[-len(typed) - 2 - len(wrapped) - 1 :] == ["8", *wrapped, "7", *typed, "named"]


def test_torchrun_as_a_module_asks_the_python_it_picks() -> None:
    typed = ["python", "-m", "torch.distributed.run", "--nproc_per_node", "2", "t.py", "--x", "1"]
    command = read_role(role(*typed))
    _, arguments = command.wrapped(["--x", "a$b"], {})
    _, words = without_shell(arguments)
    wrapped = [*typed[:5], "--", f"-m{RECORDER}", "t.py", "--x", "a$$$$b"]
    assert words[-len(typed) - 2 - len(wrapped) - 1 :] == ["10", *wrapped, "8", *typed, "picked"]


def test_torchrun_without_a_shell_gets_one() -> None:
    command = read_role(role("torchrun", "t.py", "a b"))
    entrypoint, (option, line) = command.wrapped([word.value for word in command.script_words], {})
    assert (entrypoint, option) == ("sh", "-c")
    assert shlex.split(commands_in(line)[1]) == ["torchrun", "t.py", "a b"]


def test_rewritten_words_are_quoted_in_the_wrapped_command() -> None:
    command = read_role(role("bash", "-c", "torchrun t.py --x 1 --y $Y"))
    _, (_, line) = command.wrapped(["--x", "a'b $c\n", "--y", "$Y"], {"NCCL_PROTO": "$1"})
    wrapped, typed = commands_in(line)
    assert wrapped.endswith("""t.py --x 'a'"'"'b $$$$c\n' --y $Y"""), "TorchX and torchrun each take one $ of two"
    assert typed == "torchrun t.py --x 1 --y $Y"
    assert "then export NCCL_PROTO='$$1'; exec torchrun" in line


@pytest.mark.parametrize(
    ("made", "size"),
    [
        (role("bash", "-c", "torchrun --nnodes 2 --nproc_per_node 4 t.py", replicas=2, least=2), (2, 4, 8)),
        (role("python", "t.py", replicas=3), (3, 1, 3)),
    ],
    ids=["torchrun", "python"],
)
def test_the_size_of_the_job_is_read(made: Role, size: tuple[int, int, int]) -> None:
    launch = read_role(made).launch(env={}, device="", obstacle="")
    assert (launch.nnodes, launch.nproc_per_node, launch.world_size) == size
    assert launch.why_not_rewritten == ""


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (role("torchrun", "t.py"), True),
        (role("bash", "-c", "torchrun --nnodes 2 t.py", replicas=2), True),
        (role("python", "-u", "-m", "torch.distributed.run", "t.py"), True),
        (role("torchrun", "t.py", replicas=2), False),
        (role("torchrun", "--nnodes", "1:2", "t.py", replicas=2, least=1), False),
        (role("torchrun", "--no-python", "python", "t.py"), False),
        (role("python", "t.py"), False),
    ],
    ids=["torchrun", "nodes", "module", "one node of two", "elastic", "no Python", "no torchrun"],
)
def test_a_torchrun_of_known_size_can_be_started_again(made: Role, expected: bool) -> None:
    assert read_role(made).launch(env={}, device="", obstacle="").can_have_second_attempt is expected


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (role("bash", "-c", "torchrun --nnodes 1:4 t.py", replicas=4, least=1), r"number of nodes \(1:4\) is known"),
        (role("bash", "-c", "torchrun --nnodes 4 t.py", replicas=4, least=2), r"number of nodes \(2:4\) is known"),
        (role("torchrun", "--nproc_per_node", "auto", "t.py"), r"processes per node \(auto\) is known"),
        (role("bash", "-c", "torchrun t.py --lr $LR"), "the shell expands some arguments"),
    ],
    ids=["elastic", "elastic role", "processes", "expansion"],
)
def test_a_decision_in_the_job_leaves_the_command_as_typed(made: Role, reason: str) -> None:
    launch = read_role(made).launch(env={}, device="", obstacle="")
    assert launch.program == "t.py"
    assert re.search(reason, launch.why_not_rewritten)


@pytest.mark.parametrize(
    "made",
    [role("bash", "-c", "ulimit -n 9 && torchrun t.py"), role("bash", "train.sh"), role("echo", "hi")],
    ids=["two commands", "a script", "echo"],
)
def test_other_roles_are_refused(made: Role) -> None:
    with pytest.raises(LaunchError):
        read_role(made)


@pytest.mark.parametrize(
    ("made", "size"),
    [
        (role("torchrun", "--nproc_per_node", "4", "t.py", replicas=3), (1, 4, 4)),
        (role("torchrun", "--nnodes", "1:2", "--nproc_per_node", "4", "t.py", replicas=2), (None, 4, None)),
        (role("torchrun", "--nproc_per_node", "auto", "t.py"), (None, None, None)),
        (role("python", "t.py", replicas=3, least=2), (None, 1, None)),
        (role("python", "t.py", replicas=3, least=3), (3, 1, 3)),
    ],
    ids=["torchrun decides", "elastic", "processes", "elastic role", "fixed role"],
)
def test_a_size_is_known_or_left_open(made: Role, size: tuple[int | None, int | None, int | None]) -> None:
    launch = read_role(made).launch(env={"A": "1"}, device="h", obstacle="")
    assert (launch.nnodes, launch.nproc_per_node, launch.world_size) == size
    assert bool(launch.why_not_rewritten) == (size[0] is None)
    assert (launch.env, launch.device, launch.is_module) == ({"A": "1"}, "h", False)


def test_a_reason_outside_the_command_comes_first() -> None:
    command = read_role(role("bash", "-c", "torchrun -m p.q $X"))
    assert command.launch(env={}, device="", obstacle="no").why_not_rewritten == "no"
    assert command.launch(env={}, device="", obstacle="").is_module


@pytest.mark.parametrize(
    ("made", "shell"),
    [
        (role("/bin/sh", "-c", "python t.py"), ("/bin/sh", "-c")),
        (role("bash", "-euc", "python t.py"), ("bash", "-euc")),
        (role("torchrun", "t.py"), ("sh", "-c")),
        (role("/opt/bin/torchrun", "--no-python", "python", "t.py"), ("sh", "-c")),
    ],
)
def test_the_shell_of_a_role_stays(made: Role, shell: tuple[str, str]) -> None:
    entrypoint, arguments = read_role(made).wrapped([], {})
    assert (entrypoint, arguments[0], len(arguments)) == (*shell, 2)


@pytest.mark.parametrize(
    "made", [role("sh", "-c", "python t.py", "x"), role("bash", "-x", "t"), role("dash", "-c", "python t.py")]
)
def test_another_use_of_a_shell_is_not_read(made: Role) -> None:
    with pytest.raises(LaunchError, match="is neither torchrun nor python"):
        read_role(made)


@pytest.mark.parametrize(
    ("line", "asked"),
    [
        ("torchrun t.py", "command -v torchrun"),
        ("'/my bin/torchrun' t.py", "command -v '/my bin/torchrun'"),
        ("python -u t.py", "if cubicml_why=$(python -u -c "),
        ("torchrun --no-python python3 -O t.py", "if cubicml_why=$(${PYTHON_EXEC:-python3 -O} -c "),
        ("python3 -O -m torch.distributed.run t.py", "if cubicml_why=$(${PYTHON_EXEC:-python3 -O} -c "),
    ],
)
def test_the_python_of_the_command_is_asked(line: str, asked: str) -> None:
    _, (_, wrapped) = read_role(role("bash", "-c", line)).wrapped([], {})
    assert asked in wrapped.partition("then ")[0]


@pytest.mark.parametrize(
    ("line", "unrecorded"),
    [
        ("torchrun --tee 3 t.py --x 1 $Y", "torchrun --tee 3 t.py --x 'a $$$$b' $Y"),
        ("python -m p.q --x 1 $Y", "python -m p.q --x 'a $$b' $Y"),
    ],
)
def test_a_command_with_other_arguments_is_quoted(line: str, unrecorded: str) -> None:
    command = read_role(role("bash", "-c", line))
    assert command.unrecorded(["--x", "a $b", "$Y"]) == unrecorded
    _, (_, wrapped) = command.wrapped([], {}, fallback="echo other")
    assert wrapped.endswith("exec echo other")


def test_macros_are_escaped_once_for_each_reader() -> None:
    torchrun, python = (read_role(role(name, "t.py", "$$$$5")) for name in ("torchrun", "python"))
    assert (torchrun.as_typed("$5"), python.as_typed("$5")) == ("$$$$5", "$$5")
    assert (torchrun.as_seen("$$$$5"), python.as_seen("$$$$5")) == ("$5", "$$5")
    assert python.wrapped(["$6"], {})[1][-5:] == ["3", "python", "t.py", "$$$$5", "named"]
    assert python.wrapped(["$6"], {})[1][-10:-5] == ["4", "python", f"-m{RECORDER}", "t.py", "$$6"]
