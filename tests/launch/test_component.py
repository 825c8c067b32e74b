from __future__ import annotations

import copy
import random
import shlex
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import pytest
from torchx.specs import macros

from torchx_cubicml.errors import ContractError, LaunchError
from torchx_cubicml.launch import ComponentLaunch, Launch
from torchx_cubicml.launch.torchrun_command import RECORDER
from torchx_cubicml.records.contract import CONTRACT_VARIABLE, Contract, decode_contract

if TYPE_CHECKING:
    from pathlib import Path

CONTRACT = Contract(store="file:///tmp/store", config={"micro_batch_size": 4})
DDP = "-j 1x2 --script examples/train.py -- --lr 0.1"


def parse(component: str, args: str) -> ComponentLaunch:
    return ComponentLaunch.parse(component, shlex.split(args))


def write_component(folder: Path, body: str) -> str:
    path = folder / "mine.py"
    path.write_text(f"import torchx.specs as specs\n\n{body}")
    return f"{path}:train"


def test_ddp_is_read() -> None:
    parsed = parse("dist.ddp", "-j 2x4 -h aws_p4d.24xlarge --env A=1,B=$$2 -m pkg.train -- --text 'a b' --x")
    launch = parsed.launch
    assert (launch.program, launch.is_module, launch.script_args) == ("pkg.train", True, ("--text", "a b", "--x"))
    assert (launch.nnodes, launch.nproc_per_node, launch.world_size) == (2, 4, 8)
    assert launch.device == "aws_p4d.24xlarge"
    assert launch.env["A"] == "1"
    assert launch.env["B"] == "$2"
    assert parsed.why_not_recorded == launch.why_not_rewritten == ""


def test_the_recorded_app_changes_command_and_contract_only() -> None:
    parsed = parse("dist.ddp", f"--name exp/run {DDP}")
    typed, recorded = asdict(parsed.build()), asdict(parsed.build(parsed.launch, CONTRACT))
    (typed_role,), (role,) = typed["roles"], recorded["roles"]
    line = role["args"][1]
    assert f"-- -m{RECORDER} examples/train.py --lr 0.1; fi;" in line
    assert line.endswith(f"exec {typed_role['args'][1]}")
    assert decode_contract(role["env"].pop(CONTRACT_VARIABLE)) == CONTRACT
    role["args"][1] = typed_role["args"][1]
    assert recorded == typed
    assert (recorded["name"], role["name"]) == ("run", "train")


def test_building_is_repeatable_and_leaves_the_source_alone() -> None:
    parsed = parse("dist.ddp", DDP)
    before = copy.deepcopy(parsed.source.app)
    changed = replace(parsed.launch, script_args=("--lr", "9"), env={**parsed.launch.env, "NCCL_PROTO": "LL"})
    assert parsed.build(changed, CONTRACT) == parsed.build(changed, CONTRACT)
    assert parsed.build(changed, CONTRACT) != parsed.build(parsed.launch, CONTRACT)
    assert parsed.build() == parsed.source.app == before


def test_changed_variables_belong_to_the_recorded_command_only() -> None:
    parsed = parse("dist.ddp", DDP)
    app = parsed.build(replace(parsed.launch, env={**parsed.launch.env, "NCCL_PROTO": "LL"}), CONTRACT)
    assert "export NCCL_PROTO=LL; exec torchrun" in app.roles[0].args[1]
    assert "NCCL_PROTO" not in app.roles[0].env


def test_macros_leave_the_line_whole() -> None:
    parsed = parse("dist.ddp", f"{DDP} --name '${{app_id}}' --cost '$$5'")
    role = parsed.build(replace(parsed.launch, script_args=("--x", "${app_id} $9")), CONTRACT).roles[0]
    values = macros.Values(img_root="", app_id="app-1", replica_id="0", rank0_env="R0")
    line = values.apply(role).args[1]
    wrapped, typed = (part.split("; fi;")[0] for part in line.split("exec ")[-2:])
    assert shlex.split(wrapped)[-2:] == ["--x", "$${app_id} $$9"], "torchrun takes the other $"
    assert shlex.split(typed)[-4:] == ["--name", "app-1", "--cost", "$5"]


def test_defaults_of_the_inner_component_reach_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / ".torchxconfig"
    config.write_text("[component:dist.ddp]\nj = 1x7\nenv = A=7\nscript_args = --lr 3\n")
    monkeypatch.setenv("TORCHXCONFIG", str(config))
    parsed = parse("dist.ddp", "--script t.py")
    assert (parsed.launch.nproc_per_node, parsed.launch.env["A"]) == (7, "7")
    assert parsed.launch.script_args == ("--lr", "3")
    assert parsed.arguments(replace(parsed.launch, script_args=("--lr", "4"))) == (
        "--script",
        "t.py",
        "--",
        "--lr",
        "4",
    )


def test_components_in_a_file_are_launched(tmp_path: Path) -> None:
    name = write_component(
        tmp_path,
        "def train(*args: str, cluster: str = 'a') -> specs.AppDef:\n"
        "    line = 'torchrun --nproc_per_node 2 train.py ' + ' '.join(args) + ' --cluster ' + cluster\n"
        "    role = specs.Role(name='r', image='', entrypoint='bash', args=['-c', line])\n"
        "    return specs.AppDef(name='app', roles=[role])\n",
    )
    parsed = parse(name, "--cluster b -- --lr 1")
    assert parsed.launch.script_args == ("--lr", "1", "--cluster", "b")
    assert f"-- -m{RECORDER} train.py --lr 1 --cluster b;" in parsed.build(parsed.launch, CONTRACT).roles[0].args[1]
    with pytest.raises(LaunchError, match="builds script arguments"):
        parsed.arguments(replace(parsed.launch, script_args=("--lr", "2", "--cluster", "b")))


def test_the_first_of_several_roles_is_recorded(tmp_path: Path) -> None:
    name = write_component(
        tmp_path,
        "def train() -> specs.AppDef:\n"
        "    lines = {'reader': 'python reader.py', 'actor': 'torchrun a.py', 'critic': 'torchrun c.py'}\n"
        "    roles = [specs.Role(name=n, image='', entrypoint='sh', args=['-c', x]) for n, x in lines.items()]\n"
        "    return specs.AppDef(name='app', roles=roles)\n",
    )
    parsed = parse(name, "")
    assert parsed.launch.program == "a.py"
    assert parsed.launch.why_not_rewritten == "several roles train (reader, actor, critic); only actor is recorded"
    recorded = [CONTRACT_VARIABLE in role.env for role in parsed.build(parsed.launch, CONTRACT).roles]
    assert recorded == [False, True, False]


def test_other_programs_are_launched_as_typed() -> None:
    parsed = parse("utils.echo", "--msg hi")
    assert parsed.why_not_recorded == "role echo: echo is neither torchrun nor python"
    assert parsed.build(parsed.launch, CONTRACT) == parsed.source.app


def test_a_launcher_in_place_of_a_component_runs_behind_utils_sh() -> None:
    typed = parse("python", "train.py --lr 1")
    assert (typed.launch.program, typed.launch.script_args) == ("train.py", ("--lr", "1"))
    assert (typed.source.component, typed.source.app) == (
        "utils.sh",
        parse("utils.sh", "python train.py --lr 1").source.app,
    )
    assert parse("torchrun", "--nproc_per_node 2 t.py").launch.world_size == 2


@pytest.mark.parametrize(
    ("component", "args", "reason"),
    [
        ("dist.nope", "", "Component `dist.nope` not found.*torchx builtins"),
        (
            "bash",
            "run.sh",
            "Component `bash` not found.*; or begin with torchrun, accelerate launch, deepspeed, mpirun",
        ),
        ("nowhere.py:train", "", "nowhere.py does not exist"),
        ("dist.ddp", "-j 1y2 --script t.py", "dist.ddp rejects its arguments: Invalid format for -j, .* Given: 1y2"),
        ("dist.ddp", "-j 1x2", "exactly one of --script and -m"),
        ("dist.ddp", "-h nope --script t.py", "dist.ddp rejects its arguments: unknown .*nope"),
    ],
    ids=["component", "no launcher", "file", "size", "script", "host"],
)
def test_a_refusal_of_torchx_is_one_line(component: str, args: str, reason: str) -> None:
    with pytest.raises(LaunchError, match=reason) as raised:
        parse(component, args)
    assert "\n" not in str(raised.value)


def test_an_unknown_option_is_refused_by_the_parser_of_torchx(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("dist.ddp", "--script t.py --lr 0.1")
    assert "unrecognized arguments" in capsys.readouterr().err


def test_a_contract_over_its_limit_is_refused() -> None:
    parsed = parse("dist.ddp", DDP)
    noise = {f"name {number}": random.Random(number).randbytes(10).hex() for number in range(1000)}
    with pytest.raises(ContractError):
        parsed.build(parsed.launch, replace(CONTRACT, config=noise))


@pytest.mark.parametrize(
    ("args", "script_args", "env", "typed"),
    [
        (DDP, ("--lr", "0.1"), {}, DDP),
        (DDP, ("--lr", "a b $5"), {}, "-j 1x2 --script examples/train.py -- --lr 'a b $$$$5'"),
        ("--script t.py", ("--lr", "2"), {}, "--script t.py -- --lr 2"),
        ("--script t.py -- x '$$y'", ("x", "$y", "z"), {}, "--script t.py -- x '$$y' z"),
        ("--script t.py", (), {"A": "1", "B": "2"}, "--script t.py --env A=1,B=2"),
        ("--env=C=3 --script t.py", (), {"A": "1"}, "--env=C=3,A=1 --script t.py"),
    ],
    ids=["same", "quoted", "added", "kept", "variables", "more variables"],
)
def test_arguments_that_make_a_launch_when_typed(
    args: str, script_args: tuple[str, ...], env: dict[str, str], typed: str
) -> None:
    parsed = parse("dist.ddp", args)
    wanted = replace(parsed.launch, script_args=script_args, env={**parsed.launch.env, **env})
    arguments = parsed.arguments(wanted)
    assert arguments == tuple(shlex.split(typed))
    assert ComponentLaunch.parse("dist.ddp", arguments).launch == wanted


def test_a_component_without_variables_cannot_be_typed_with_them() -> None:
    parsed = parse("utils.python", "-m pkg")
    with pytest.raises(LaunchError, match="has no --env option to set A"):
        parsed.arguments(replace(parsed.launch, env={**parsed.launch.env, "A": "1"}))


def resized(parsed: ComponentLaunch, nnodes: int, nproc: int) -> Launch:
    return replace(parsed.launch, nnodes=nnodes, nproc_per_node=nproc, world_size=nnodes * nproc)


@pytest.mark.parametrize(
    ("typed", "after"),
    [
        ("-j 1x2 --cpu 3", "-j 2x4 --cpu 3"),
        ("--cpu 3 --j=1x2", "--cpu 3 --j=2x4"),
        ("--cpu 3 -j1x2", "--cpu 3 -j2x4"),
        ("-j 4x4 --cpu 3 -j 1x2", "-j 4x4 --cpu 3 -j 2x4"),
        ("--cpu 3", "--cpu 3 -j 2x4"),
    ],
)
def test_another_size_is_typed_where_the_size_was(typed: str, after: str) -> None:
    parsed = parse("dist.ddp", f"-m pkg {typed}")
    assert parsed.launch.resizable == {"nnodes", "nproc_per_node"}
    assert parsed.arguments(parsed.launch) == tuple(f"-m pkg {typed}".split())
    assert parsed.arguments(resized(parsed, 2, 4)) == tuple(f"-m pkg {after}".split())


@pytest.mark.parametrize(
    ("typed", "size", "otherwise"),
    [
        ("1x2", (1, 4), (1, 2, "1")),
        ("2x2", (1, 4), (1, 4, "2")),
        ("2x2", (4, 1), (4, 1, "2")),
        ("2x2", (2, 4), (2, 2, "1")),
    ],
)
def test_a_resized_app_falls_back_to_the_nodes_it_has(
    typed: str, size: tuple[int, int], otherwise: tuple[int, int, str]
) -> None:
    parsed = parse("dist.ddp", f"-j {typed} --script t.py -- --lr 1")
    target = replace(resized(parsed, *size), script_args=("--lr", "2"))
    role = parsed.build(target, CONTRACT).roles[0]
    recorded, _, fallback = role.args[1].partition("; fi;")
    assert role.num_replicas == size[0]
    assert f"--nnodes {size[0]} --nproc_per_node {size[1]} " in recorded
    assert recorded.endswith("t.py --lr 2")
    assert f"--nnodes {otherwise[0]} --nproc_per_node {otherwise[1]} " in fallback
    assert fallback.endswith(f"t.py --lr {otherwise[2]}")


def test_a_resized_app_needs_no_script_arguments() -> None:
    parsed = parse("dist.ddp", "-j 1x2 -m pkg")
    line = parsed.build(resized(parsed, 1, 4), CONTRACT).roles[0].args[1]
    assert "--nproc_per_node 4 " in line
    assert f"-- -m{RECORDER} -m pkg; fi;" in line


@pytest.mark.parametrize(
    "line",
    [
        "f'torchrun --nproc_per_node {j[2:] or 2} ' + ('b.py' if j else 'a.py')",
        "f'torchrun --nproc_per_node {j[2:] or 2} a.py ' + j",
        "'torchrun --nproc_per_node 2 a.py'",
        "'echo' if j else 'torchrun a.py'",
    ],
    ids=["program", "arguments", "size", "command"],
)
def test_a_size_may_not_change_the_rest_of_a_command(tmp_path: Path, line: str) -> None:
    name = write_component(
        tmp_path,
        "def train(j: str = '') -> specs.AppDef:\n"
        f"    line = {line}\n"
        "    role = specs.Role(name='r', image='', entrypoint='sh', args=['-c', line])\n"
        "    return specs.AppDef(name='a', roles=[role])\n",
    )
    parsed = parse(name, "")
    with pytest.raises(LaunchError, match="builds a different command for -j 1x4"):
        parsed.build(resized(parsed, 1, 4), CONTRACT)


@pytest.mark.parametrize(
    ("line", "option", "sizes"),
    [
        ("torchrun t.py", "j", {"nnodes", "nproc_per_node"}),
        ("torchrun t.py", "k", set()),
        ("python t.py", "j", set()),
        ("torchrun --nnodes 1:2 t.py", "j", set()),
    ],
)
def test_a_size_can_change_where_an_option_sets_it(tmp_path: Path, line: str, option: str, sizes: set[str]) -> None:
    name = write_component(
        tmp_path,
        f"def train({option}: str = '') -> specs.AppDef:\n"
        f"    role = specs.Role(name='r', image='', entrypoint='sh', args=['-c', {line!r}])\n"
        "    return specs.AppDef(name='a', roles=[role])\n",
    )
    assert parse(name, "").launch.resizable == sizes


@pytest.mark.parametrize("args", ["--msg hi", ""])
def test_a_command_that_is_not_read_is_typed_as_it_was(args: str) -> None:
    parsed = parse("utils.echo", args)
    assert parsed.arguments(parsed.launch) == tuple(args.split())
    assert (parsed.launch.program, parsed.launch.resizable) == ("", frozenset())


def test_words_of_an_unread_command_are_typed_again() -> None:
    parsed = parse("utils.sh", "--image i -- echo hi")
    assert parsed.launch.why_not_rewritten == parsed.why_not_recorded != ""
    assert parsed.arguments(parsed.launch) == ("--image", "i", "--", "echo", "hi")


def test_the_first_role_says_why_none_is_recorded(tmp_path: Path) -> None:
    name = write_component(
        tmp_path,
        "def train() -> specs.AppDef:\n"
        "    roles = [specs.Role(name=n, image='', entrypoint=n) for n in ('a', 'b')]\n"
        "    return specs.AppDef(name='app', roles=roles)\n\n"
        "def nothing() -> specs.AppDef:\n"
        "    return specs.AppDef(name='app', roles=[])\n",
    )
    assert parse(name, "").why_not_recorded == "role a: a is neither torchrun nor python"
    assert parse(name.replace(":train", ":nothing"), "").why_not_recorded == "the component has no role"


def test_writable_mounts_of_one_path_are_known(tmp_path: Path) -> None:
    name = write_component(
        tmp_path,
        "def train() -> specs.AppDef:\n"
        "    mounts = [\n"
        "        specs.BindMount(src_path='/same', dst_path='/same'),\n"
        "        specs.BindMount(src_path='/fixed', dst_path='/fixed', read_only=True),\n"
        "        specs.BindMount(src_path='/out', dst_path='/in'),\n"
        "        specs.VolumeMount(src='name', dst_path='/volume'),\n"
        "        specs.DeviceMount(src_path='/dev/x', dst_path='/dev/x'),\n"
        "    ]\n"
        "    role = specs.Role(name='r', image='', entrypoint='python', args=['t.py'], mounts=mounts)\n"
        "    return specs.AppDef(name='app', roles=[role])\n",
    )
    assert parse(name, "").launch.mounted == ("/same", "/volume")


def test_each_app_is_new() -> None:
    parsed = parse("dist.ddp", DDP)
    for contract in (None, CONTRACT):
        app = parsed.build(parsed.launch, contract)
        app.roles[0].args.append("more")
        app.roles[0].env["MORE"] = "1"
        assert "more" not in parsed.build(parsed.launch, contract).roles[0].args
        assert "MORE" not in parsed.source.app.roles[0].env


def test_the_last_of_several_variables_is_extended() -> None:
    parsed = parse("dist.ddp", "--env A=1 -m pkg --env B=2 -h aws_t3.medium")
    changed = replace(parsed.launch, env={**parsed.launch.env, "C": "3"})
    assert parsed.arguments(changed) == ("--env", "A=1", "-m", "pkg", "--env", "B=2,C=3", "-h", "aws_t3.medium")
    assert parsed.launch.device == "aws_t3.medium"
    assert parse("dist.ddp", "-m pkg").launch.device == ""


LAUNCHED = "accelerate launch --multi_gpu --num_processes 2 train.py --lr 0.1"


def test_a_command_of_another_launcher_is_read_and_recorded() -> None:
    parsed = parse("utils.sh", LAUNCHED)
    launch = parsed.launch
    assert (launch.program, launch.script_args, launch.launcher) == ("train.py", ("--lr", "0.1"), "accelerate")
    assert (launch.world_size, launch.resizable, launch.why_not_rewritten) == (2, {"nproc_per_node"}, "")
    (role,) = parsed.build(launch, CONTRACT).roles
    recorded = f"accelerate launch --multi_gpu --num_processes 2 -- -m{RECORDER} train.py --lr 0.1; fi;"
    assert recorded in role.args[1]
    assert role.args[1].endswith(f"exec {LAUNCHED}")
    assert parsed.arguments(launch) == ("--", *LAUNCHED.split())


def test_the_size_and_the_options_of_a_launcher_are_written() -> None:
    parsed = parse("utils.sh", LAUNCHED)
    options = (*parsed.launch.launcher_args, "--fsdp_sharding_strategy", "a b")
    other = replace(parsed.launch, nproc_per_node=4, world_size=4, launcher_args=options, script_args=("--lr", "1"))
    (role,) = parsed.build(other, CONTRACT).roles
    head = "accelerate launch --multi_gpu --num_processes 4 --fsdp_sharding_strategy 'a b'"
    assert f"exec {head} -- -m{RECORDER} train.py --lr 1; fi;" in role.args[1]
    assert role.args[1].endswith(f"exec {LAUNCHED}")
    assert shlex.join(parsed.arguments(other)) == f"-- {head} train.py --lr 1"
    read = ComponentLaunch.parse("utils.sh", parsed.arguments(other)).launch
    assert (read.nproc_per_node, read.launcher_args[-1], read.script_args) == (4, "a b", ("--lr", "1"))


def test_a_launcher_of_any_command_starts_the_guard_in_each_process(tmp_path: Path) -> None:
    body = """
def train(*args: str) -> specs.AppDef:
    \"\"\"Trains.

    Args:
        args: of the script
    \"\"\"
    words = ["-n", "2", "python", "train.py", *args]
    role = specs.Role(name="train", image="", entrypoint="srun", args=words)
    return specs.AppDef(name="train", roles=[role])
"""
    parsed = parse(write_component(tmp_path, body), "-- --lr 1")
    (role,) = parsed.build(parsed.launch, CONTRACT).roles
    assert (role.entrypoint, role.args[:4]) == ("srun", ["-n", "2", "python", "-c"])
    wrapped = ["python", f"-m{RECORDER}", "train.py", "--lr", "1"]
    typed = ["python", "train.py", "--lr", "1"]
    assert role.args[-len(typed) - len(wrapped) - 3 :] == ["5", *wrapped, "4", *typed, "named"]
