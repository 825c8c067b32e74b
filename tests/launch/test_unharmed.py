"""Values and unknown arguments reach a script byte for byte: through TorchX, a real bash, and Slurm's exports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torchx.schedulers.slurm_scheduler import create_scheduler
from torchx.specs import macros

from torchx_cubicml.launch import ComponentLaunch, read_config, write_config
from torchx_cubicml.records.contract import CONTRACT_VARIABLE, Contract, decode_contract
from torchx_cubicml.space import Binding, BindingKind, Parameter, SearchSpace

if TYPE_CHECKING:
    from pathlib import Path

    from torchx.specs import AppDef

# What the real programs do with their arguments and nothing else of them; the job itself is not started.
TORCHRUN = """#!{python}
import json, os, sys
from string import Template
words = sys.argv[sys.argv.index("--") + 2 :]
shown = {{name: os.environ.get(name) for name in ("TEXT", "KEPT", "{contract}")}}
argv = [Template(word).safe_substitute(local_rank="0") for word in words]  # as torch.distributed.elastic does
with open(os.environ["SHOWN"], "w") as file:
    json.dump({{"argv": argv, "env": shown}}, file)
"""
SRUN = """#!{python}
import os, sys
words = sys.argv[1 : sys.argv.index(":") if ":" in sys.argv else None]
while words[0].startswith("--"):
    name, _, value = words.pop(0).partition("=")
    if name == "--export":  # commas part the variables, whatever stands in them
        os.environ.update(item.split("=", 1) for item in value.split(",") if "=" in item)
os.execvp(words[0], words)
"""
PIECES = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=6),
    st.sampled_from(["$", "$$", "${app_id}", "$HOME", "$(id)", "`id`", "'", '"', "\\", " ", "\n", "\t", "#", "{a,b}"]),
    st.sampled_from(["~", "*", "; rm -rf /", "&&", ">", "%s", "!x", ",", "=", "é", "漢"]),
)
TEXT = st.lists(PIECES, max_size=4).map("".join)
ARGUMENTS = st.lists(
    st.one_of(TEXT.map("u{}".format), TEXT.map("--other={}".format), st.just("-v")), max_size=4
)  # none that is taken for a flag of the space, and no lone "--"


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bin")
    for name, text in {"torchrun": TORCHRUN, "srun": SRUN}.items():
        (folder / name).write_text(text.format(python=sys.executable, contract=CONTRACT_VARIABLE))
        (folder / name).chmod(0o755)
    return folder


def through_bash(app: AppDef) -> tuple[list[str], dict[str, str]]:
    (role,) = app.roles
    seen = macros.Values(img_root="", app_id="app-1", replica_id="0", rank0_env="HOST").apply(role)
    return [role.entrypoint, *seen.args], dict(seen.env)


def through_slurm(app: AppDef) -> tuple[list[str], dict[str, str]]:
    options = ("partition", "time", "comment", "constraint", "mail-user", "mail-type", "job_dir")
    info = create_scheduler("test").submit_dryrun(app, {**dict.fromkeys(options), "nomem": False})
    return ["bash", "-c", info.request.materialize()], {}


@pytest.mark.parametrize("way", [through_bash, through_slurm], ids=["bash", "slurm"])
@settings(max_examples=12)
@given(flag=TEXT, joined=TEXT, variable=TEXT, first=ARGUMENTS, last=ARGUMENTS)
def test_every_value_arrives_as_it_is(
    way, programs: Path, flag: str, joined: str, variable: str, first: list[str], last: list[str]
) -> None:
    # A ${app_id} that the user types is the scheduler's to replace, on Slurm even where it is escaped.
    assume(way is through_bash or not any("${app_id}" in word for word in [*first, *last]))
    typed = [*first, "--flag", "plain", "--joined=plain", *last]
    # A component's arguments pass TorchX's macros and torchrun's, where $$ stands for $.
    escaped = [word.replace("$", "$$$$") for word in typed]
    options = ["-j", "1x2", "--env", "TEXT=plain,KEPT=a b", "--script", "train.py", "--", *escaped]
    component = ComponentLaunch.parse("dist.ddp", options)
    assert list(component.launch.script_args) == typed
    values = {"flag": flag, "joined": joined, "variable": variable}
    places = {
        "flag": Binding(kind=BindingKind.FLAG, name="--flag"),
        "joined": Binding(kind=BindingKind.FLAG, name="--joined"),
        "variable": Binding(kind=BindingKind.ENV, name="TEXT"),
    }
    space = SearchSpace(
        parameters=tuple(
            Parameter(name=name, choices=tuple({"plain": 0, values[name]: 0}), binding=place)
            for name, place in places.items()
        )
    )
    own = read_config(component.launch, space)[1]
    assert write_config(component.launch, space, own) == component.launch
    written = write_config(component.launch, space, values)
    assert read_config(written, space)[1] == values
    contract = Contract(store="/tmp/store", config=values)
    shown = run(*way(component.build(written, contract)), programs)
    assert shown["argv"] == ["train.py", *written.script_args]
    rest = iter(shown["argv"])
    assert all(word in rest for word in [*first, *last]), "unknown words must stay, in their order"
    assert (shown["env"]["TEXT"], shown["env"]["KEPT"]) == (variable, "a b")
    assert decode_contract(shown["env"][CONTRACT_VARIABLE]) == contract
    retyped = ComponentLaunch.parse("dist.ddp", component.arguments(replace(written, env=component.launch.env)))
    assert retyped.launch.script_args == written.script_args


def run(command: list[str], env: dict[str, str], programs: Path) -> dict:
    out = programs / "shown.json"
    out.unlink(missing_ok=True)
    (programs / "slurm").mkdir(exist_ok=True)
    done = subprocess.run(
        command,
        env={
            **os.environ,
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "SHOWN": str(out),
            "SLURM_JOB_ID": "7",
            **env,
        },
        cwd=programs / "slurm",
        capture_output=True,
        text=True,
        check=False,
    )
    assert out.exists(), done.stderr
    return json.loads(out.read_text())
