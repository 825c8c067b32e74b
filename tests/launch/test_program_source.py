"""Source of a program: what is read of it, and whether other code may run besides."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.launch import Launch
from torchx_cubicml.launch.program_source import ProgramSource
from torchx_cubicml.launch.source_files import source_files

if TYPE_CHECKING:
    from pathlib import Path


def source_of(folder: Path, text: str, *, scheduler: str = "local_cwd", **others: str) -> ProgramSource:
    (folder / "train.py").write_text(text)
    for name, other in others.items():
        path = folder / f"{name.replace('__in__', '/')}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(other)
    return ProgramSource.of(Launch(program=str(folder / "train.py"), scheduler=scheduler))


@pytest.mark.parametrize(
    "text",
    [
        "import torch, os.path, json, tqdm\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n",
        "from torch import compile\nmodel = compile(model).eval()\nmodel.system('x')\n",
        "import torch\nstep = getattr(torch.optim, 'AdamW')\nsize = getattr(args, name)\n",
        "import multiprocessing, random\n",
        "from torch.distributed.elastic.multiprocessing.errors import record\n",
    ],
    ids=["imports", "names of builtins", "getattr", "standard library", "errors of torchrun"],
)
def test_a_plain_program_leaves_no_doubt(text: str, tmp_path: Path) -> None:
    assert source_of(tmp_path, text).doubt == ""


@pytest.mark.parametrize(
    "text",
    [
        "import accelerate\n",
        "def late():\n    from company.training import wrap\n",
        "import importlib\nimportlib.import_module('wrap')\n",
        "from importlib import import_module as load\n",
        "__import__('wrap')\n",
        "exec(open('config.py').read())\n",
        "print(eval('wrap'))\n",
        "import sys as system\nsystem.path.insert(0, '..')\n",
        "from sys import path\n",
        "import os\nos.execvp('python', ['python', 'other.py'])\n",
        "from os import system\n",
        "import subprocess\n",
        "from pydoc import locate\n",
        "import logging.config\n",
        "import torch\ntorch.hub.load('a/b', 'c')\n",
        "from torch import hub as zoo\n",
        "import torch.distributed as dist\ngetattr(dist, name)(model)\n",
        "import torch\nvars(torch.distributed)[name]\n",
        "import torch\ntorch.distributed.__dict__[name]\n",
        "from operator import attrgetter\n",
        "from torch.distributed.run import main\n",
        "import asyncio\nasyncio.create_subprocess_exec('python', 'other.py')\n",
        "from .beside import wrap\n",
        "this is no Python\n",
    ],
)
def test_code_that_cannot_be_read_is_a_doubt(text: str, tmp_path: Path) -> None:
    assert source_of(tmp_path, text).doubt


def test_modules_beside_the_script_are_read_with_their_packages(tmp_path: Path) -> None:
    source = source_of(
        tmp_path,
        "import helpers\nfrom models import gpt\nfrom layers.block import Block\n",
        helpers="import math\n",
        models__in__gpt="from . import rope\n",
        models__in__rope="ROPE = 1\n",
        layers__in____init__="FIRST = 1\n",
        layers__in__block="class Block: ...\n",
    )
    assert source.doubt == ""
    assert len(source.files) == 6
    assert source.has(["rope = 1"])
    assert source.has(["first = 1"])


def test_a_module_beside_the_script_may_leave_a_doubt(tmp_path: Path) -> None:
    assert "accelerate" in source_of(tmp_path, "import helpers\n", helpers="import accelerate\n").doubt


def test_a_compiled_module_beside_the_script_is_a_doubt(tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "fast.cpython-311-x86_64-linux-gnu.so").write_bytes(b"")
    assert "pack.fast" in source_of(tmp_path, "from pack import fast\n", pack__in____init__="").doubt


def test_a_folder_of_outputs_does_not_hide_a_library(tmp_path: Path) -> None:
    for name in ("wandb", "accelerate"):
        (tmp_path / name).mkdir()
    assert source_of(tmp_path, "import wandb\nfrom wandb import init\n").doubt == ""
    assert "accelerate" in source_of(tmp_path, "import accelerate\n").doubt


def test_more_files_than_are_read_are_a_doubt(tmp_path: Path) -> None:
    others = {f"part{number}": "" for number in range(60)}
    source = source_of(tmp_path, "".join(f"import {name}\n" for name in others), **others)
    assert "cannot be read" in source.doubt


@pytest.mark.parametrize("scheduler", ["kubernetes", "local_docker", "", "of_a_company"])
def test_a_job_that_may_have_other_files_is_a_doubt(scheduler: str, tmp_path: Path) -> None:
    assert "another file" in source_of(tmp_path, "import torch\n", scheduler=scheduler).doubt


@pytest.mark.parametrize(
    "launch",
    [
        Launch(program="accelerate.commands.launch", is_module=True, scheduler="local_cwd"),
        Launch(program="company.train", is_module=True, scheduler="local_cwd"),
        Launch(program="", scheduler="local_cwd"),
    ],
    ids=["a starter", "an installed module", "no program"],
)
def test_a_program_that_is_not_here_is_a_doubt(launch: Launch) -> None:
    assert ProgramSource.of(launch).doubt
    assert [file.tree for file in source_files(launch)] == [None]


@pytest.mark.parametrize("program", ["work.train", "work"])
def test_a_module_runs_the_packages_around_it(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source_of(tmp_path, "", work__in____init__="import wrapping\n", work__in__train="import torch\n")
    (tmp_path / "work" / "__main__.py").write_text("import torch\n")
    (tmp_path / "wrapping.py").write_text("from torch.distributed.fsdp import fully_shard\n")
    source = ProgramSource.of(Launch(program=program, is_module=True, scheduler="local_cwd"))
    assert (source.has(["fully_shard"]), source.doubt) == (True, "")
