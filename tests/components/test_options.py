"""Each option of the component, by each way to set it, and what is recorded without being rewritten."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from torchx.specs.finder import get_components

from tests.spaces import BATCH_SIZES
from torchx_cubicml.cubicrun import plan_launch
from torchx_cubicml.launch.launchers.command_launch import split_options
from torchx_cubicml.records.contract import CONTRACT_VARIABLE, Contract, decode_contract
from torchx_cubicml.records.trial import Trial
from torchx_cubicml.rewrite.rewriter import Options, rewrite_component
from torchx_cubicml.store import TrialStore

if TYPE_CHECKING:
    from pathlib import Path

TORCHRUN = "dist.torchrun" if "dist.torchrun" in get_components() else "dist.ddp"
SCRIPT = ["--", "--batch_size", "2", "--accumulate", "8"]
NAMES = ("space", "store", "mode")
WAYS = ("typed", "file", "environment")
MAIN = "import sys; from torchx.cli.main import main; main(sys.argv[1:])"


pytestmark = pytest.mark.filterwarnings("ignore:.Deprecated. dist:UserWarning")  # in newer TorchX


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    options = (f"TORCHX_CUBICML_{name.upper()}" for name in (*NAMES, "keep_command"))
    for name in (*options, "TORCHXCONFIG"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def set_option(folder: Path, monkeypatch: pytest.MonkeyPatch, way: str, name: str, value: str) -> dict[str, str]:
    """Set an option by a way that a user has; return what is typed."""
    if way == "typed":
        return {name: value}
    if way == "environment":
        monkeypatch.setenv(f"TORCHX_CUBICML_{name.upper()}", value)
    else:
        write_config(folder, monkeypatch, {name: value})
    return {}


def write_config(folder: Path, monkeypatch: pytest.MonkeyPatch, values: dict[str, str]) -> None:
    path = folder / "config"
    path.write_text("[component:cubicml]\n" + "".join(f"{name} = {value}\n" for name, value in values.items()))
    monkeypatch.setenv("TORCHXCONFIG", str(path))  # TorchX knows the working directory as it was when it was loaded


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("ways", [WAYS[start:] for start in range(3)], ids=WAYS)
def test_the_first_way_that_sets_an_option_counts(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, ways: tuple[str, ...]
) -> None:
    typed: dict[str, str] = {}
    for way in ways:
        typed |= set_option(folder, monkeypatch, way, name, f"{name}-{way}")
    settled = Options.resolved(**typed)
    assert getattr(settled, name) == f"{name}-{ways[0]}"
    assert all(getattr(settled, other) == "" for other in NAMES if other != name)


def dry_run(folder: Path, *words: str, **env: str) -> tuple[Contract | None, str, str]:
    """Return the contract, the request and what was told of ``torchx run --dryrun cubicml``."""
    command = [sys.executable, "-c", MAIN, "run", "--dryrun", "-s", "local_cwd", "cubicml", *words]
    environment = {**os.environ, **env}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shown = re.sub(r"""['"]\n\s+['"]""", "", done.stdout)
    found = re.search(rf"'{CONTRACT_VARIABLE}': '([^']+)'", shown)
    return decode_contract(found[1]) if found is not None else None, shown, done.stderr


def component(words: list[str], **options: str) -> tuple[Contract | None, str]:
    """Return the contract and the command of what the component makes of ``words``."""
    app = rewrite_component(words, Options.resolved(**options))
    carried = app.roles[0].env.get(CONTRACT_VARIABLE, "")
    return decode_contract(carried) if carried else None, " ".join(map(str, app.roles[0].args))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("text", "kept"), [("yes", True), ("true", True), ("no", False), ("", False)])
def test_a_command_is_kept_on_demand(
    folder: Path, monkeypatch: pytest.MonkeyPatch, way: str, text: str, kept: bool
) -> None:
    typed = set_option(folder, monkeypatch, way, "keep_command", text)
    contract, _ = component(command_of(), **typed)
    assert contract is not None
    assert (contract.kept_variables is not None) is kept


def command_of(*sizes: str, script: list[str] = SCRIPT) -> list[str]:
    return [TORCHRUN, *(sizes or ("-j", "1x2")), "--script", "train.py", *script]


@pytest.mark.parametrize("way", WAYS)
def test_torchx_run_takes_all_options_by_one_way(folder: Path, way: str) -> None:
    (folder / "gpt.toml").write_text(BATCH_SIZES)
    values = {"space": "gpt.toml", "store": "team", "mode": "record"}
    words: list[str] = []
    env: dict[str, str] = {}
    if way == "typed":
        words = [word for name, value in values.items() for word in (f"--{name}", value)]
    elif way == "file":
        lines = "".join(f"{name} = {value}\n" for name, value in values.items())
        (folder / ".torchxconfig").write_text(f"[component:cubicml]\n{lines}")
    else:
        env = {f"TORCHX_CUBICML_{name.upper()}": value for name, value in values.items()}
    contract, _, stderr = dry_run(folder, *words, *command_of(), **env)
    assert contract is not None
    assert contract.store == str(folder / "team")
    assert contract.config == {"micro_batch_size": 2, "gradient_accumulation_steps": 8}
    assert "arguments" not in stderr, "mode record says nothing of them"


@pytest.mark.parametrize("way", WAYS)
def test_cubicrun_takes_all_options_by_one_way(folder: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    (folder / "gpt.toml").write_text(BATCH_SIZES)
    values = {"space": "gpt.toml", "store": "team", "mode": "record"}
    words: list[str] = []
    if way == "typed":
        words = [word for name, value in values.items() for word in (f"--cubicml-{name}", value)]
    elif way == "file":
        write_config(folder, monkeypatch, values)
    else:
        for name, value in values.items():
            monkeypatch.setenv(f"TORCHX_CUBICML_{name.upper()}", value)
    given, args = split_options([*words, "--nproc_per_node", "2", "train.py", *SCRIPT[1:]])
    plan = plan_launch(given, args)
    contract = decode_contract(plan.env[CONTRACT_VARIABLE])
    assert contract.store == str(folder / "team")
    assert contract.config == {"micro_batch_size": 2, "gradient_accumulation_steps": 8}
    assert len(plan.lines) == 1


def fill(store: Path, program: str = "train.py") -> None:
    """Let the store know that a micro batch of 8 is by far the fastest."""
    trials = TrialStore(str(store))
    for batch in (1, 2, 4, 8):
        for speed in (1000.0, 1001.0):
            trials.add(
                Trial.completed(
                    workload={"program": program, "world_size": 2},
                    config={"micro_batch_size": batch, "gradient_accumulation_steps": 16 // batch},
                    tokens_per_second=speed * (9 if batch == 8 else 1),
                )
            )


OWN = """
import torchx.specs as specs


def several() -> specs.AppDef:
    line = "torchrun --nproc_per_node 2 train.py --batch_size 2 --accumulate 8"
    roles = [specs.Role(name=name, image="", entrypoint="bash", args=["-c", line]) for name in ("actor", "critic")]
    return specs.AppDef(name="a", roles=roles)


def expanded() -> specs.AppDef:
    line = "torchrun --nproc_per_node 2 train.py --batch_size 2 --accumulate 8 --out $OUT"
    return specs.AppDef(name="a", roles=[specs.Role(name="r", image="", entrypoint="bash", args=["-c", line])])


def piped() -> specs.AppDef:
    line = "torchrun --nproc_per_node 2 train.py --batch_size 2 --accumulate 8 | tee log"
    return specs.AppDef(name="a", roles=[specs.Role(name="r", image="", entrypoint="bash", args=["-c", line])])
"""


@pytest.mark.parametrize(
    ("words", "recorded", "message"),
    [
        (command_of(), True, "arguments rewritten"),
        (command_of("-j", "1:4x2"), True, r"keeping your arguments: the number of nodes \(1:4\) is known only when"),
        (["own.py:several"], True, r"keeping your arguments: several roles train \(actor, critic\); only actor"),
        (
            ["own.py:expanded"],
            True,
            "keeping your arguments: the shell expands some arguments only when the job starts",
        ),
        (["own.py:piped"], False, "running your command as typed, without recording it: role r: "),
        (["utils.echo", "--msg", "hi"], False, "running your command as typed, without recording it: role echo: "),
        (command_of(script=["--", "--accumulate", "8"]), True, "keeping your arguments: .*--batch_size"),
        (
            command_of(script=["--", "--batch_size", "3", "--accumulate", "8"]),
            True,
            "keeping your arguments: ",
        ),
        (command_of(script=[*SCRIPT, "--text", "x" * 60_000]), False, "the recorded command has .* the limit is"),
    ],
    ids=["rewritten", "elastic", "roles", "expansion", "pipe", "no training", "absent", "no choice", "long"],
)
def test_an_unrewritten_launch_says_why(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], recorded: bool, message: str
) -> None:
    (folder / "gpt.toml").write_text(BATCH_SIZES)
    (folder / "own.py").write_text(OWN)
    fill(folder / "team")
    contract, shown = component(words, space="gpt.toml", store="team")
    stderr = capsys.readouterr().err
    assert re.search(f"^torchx-cubicml: .*{message}", stderr, re.MULTILINE), stderr
    assert (contract is not None) == recorded
    if "rewritten" not in message:
        assert "--batch_size 8" not in shown
        assert not recorded or "torchx_cubicml.recorder" in shown


def test_an_unknown_trainer_is_recorded_as_typed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(folder / "team")
    contract, shown = component(command_of(), store="team", mode="rewrite")
    stderr = capsys.readouterr().err
    assert contract is not None
    assert contract.config == {}
    assert "keeping your arguments: no space file was given (--space FILE)" in stderr
    assert "train.py --batch_size 2 --accumulate 8" in shown


def test_a_launch_too_large_for_a_contract_is_recorded(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "".join(f'{index} = "{os.urandom(60).hex()}"\n' for index in range(120))
    facts = re.sub(r"^", "f", text, flags=re.MULTILINE).rstrip("f")
    (folder / "gpt.toml").write_text(f"[workload]\n{facts}\n{BATCH_SIZES}")
    contract, shown = component(command_of(), space="gpt.toml", store="team")
    stderr = capsys.readouterr().err
    assert contract is not None
    assert (contract.workload, contract.config) == ({"program": "train.py", "world_size": 2}, {})
    assert re.search("keeping your arguments: the launch contract has .* the limit is 6144", stderr)
    assert "recorder train.py --batch_size 2 --accumulate 8" in shown


def test_repeated_flags_work_through_cubicrun_only(folder: Path) -> None:
    (folder / "gpt.toml").write_text(BATCH_SIZES)
    repeated = [*SCRIPT[1:], "--layer", "1", "--layer", "2"]
    words = [*command_of(), "--layer", "1", "--layer", "2"]
    command = [sys.executable, "-c", MAIN, "run", "--dryrun", "-s", "local_cwd", "cubicml", "--store", "team", *words]
    refused = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert (refused.returncode != 0, "--layer" in refused.stderr) == (True, True)
    plan = plan_launch({"store": "team", "space": "gpt.toml"}, ["--nproc_per_node", "2", "train.py", *repeated])
    assert plan.args[-4:] == ("--layer", "1", "--layer", "2")
    assert CONTRACT_VARIABLE in plan.env
