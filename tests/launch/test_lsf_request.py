"""The request to LSF, run by a shell: ``bsub`` and ``docker`` stand for themselves and pass on what they are given."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from torchx.runner import get_runner
from torchx.schedulers import get_scheduler_factories

from torchx_cubicml.launch import ComponentLaunch
from torchx_cubicml.launch.place_config import place_config
from torchx_cubicml.records.contract import CONTRACT_VARIABLE, decode_contract
from torchx_cubicml.records.trial import Origin
from torchx_cubicml.space.toml import parse_space

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif("lsf" not in get_scheduler_factories(), reason="this TorchX has no scheduler lsf")
SPACE = """
objective = "samples_per_second"
[parameters.micro_batch_size]
choices = [1, 2, 4]
flag = "--batch_size"
[parameters.algorithms]
choices = ["ring,tree", "nvls"]
env = "NCCL_ALGO"
"""
ARGS = ["-j", "2x2", "--script", "train.py", "--env", "NCCL_ALGO=nvls", "--", "--batch_size", "2"]
TEXT = "a b, it's 100 $"  # TorchX lets the submitting shell expand backquotes, recorded or not
ARGS += ["--text", TEXT.replace("$", "$$")]
BSUB = "#!/bin/sh\nexec sh\n"  # LSF runs the standard input of bsub by a shell
DOCKER = f"""#!{sys.executable}
import os, sys
words = iter(sys.argv[2:])
variables, entrypoint = dict(os.environ), ""
for word in words:
    if word == "-e":
        name, _, value = next(words).partition("=")
        variables[name] = value
    elif word == "--entrypoint":
        entrypoint = next(words)
    elif word == "--rm":
        break
next(words)  # the image
os.execvpe(entrypoint, [entrypoint, *words], variables)
"""
TORCHRUN = f"""#!{sys.executable}
import json, os, sys
line = json.dumps([sys.argv[1:], os.environ["{CONTRACT_VARIABLE}"], os.environ["NCCL_ALGO"]])
os.write(1, (line + chr(10)).encode())
"""


def test_contract_store_and_arguments_arrive_behind_all_shells(tmp_path: Path) -> None:
    for name, text in (("bsub", BSUB), ("docker", DOCKER), ("torchrun", TORCHRUN)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    component = ComponentLaunch.parse("dist.ddp", ARGS)
    space = parse_space(SPACE, where="space.toml")
    config = {"micro_batch_size": 4, "algorithms": "ring,tree"}
    placed = place_config(component.launch, space, config, store="/shared/store, of a team", origin=Origin.TUNE)
    app = component.build(placed.launch, placed.contract)
    script = get_runner().dryrun(app, "lsf", cfg={}).request.materialize()
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash"], input=script, env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    ran = list(map(json.loads, done.stdout.splitlines()))
    assert len(ran) == 2
    for words, contract, algorithms in ran:
        assert words[-6:] == ["-mtorchx_cubicml.recorder", "train.py", "--batch_size", "4", "--text", TEXT]
        found = decode_contract(contract)
        assert (found.store, dict(found.config)) == ("/shared/store, of a team", config)
        assert algorithms == "ring,tree"
