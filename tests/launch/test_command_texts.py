"""Texts of a command that are compared: config files and environment variables."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.launch.command_texts import command_texts, recorded_variables, user_program
from torchx_cubicml.records.event import digests_of

if TYPE_CHECKING:
    from pathlib import Path


def texts_of_files(folder: Path, contents: list[str]) -> dict[str, str]:
    arguments = []
    for index, content in enumerate(contents):
        (folder / f"{index}.json").write_text(content)
        arguments += [f"--file{index}", f"{index}.json"]
    return command_texts(None, arguments, environment={}, folder=str(folder))


def test_keys_of_a_file_are_texts_of_their_own(tmp_path: Path) -> None:
    content = json.dumps({"model": {"depth": 2, "name": "x"}, "api_key": "hunter2"})
    assert texts_of_files(tmp_path, [content]) == {"--file0:model.depth": "2", "--file0:model.name": '"x"'}


def test_a_file_with_a_very_long_key_counts_as_a_whole(tmp_path: Path) -> None:
    content = json.dumps({"k" * 70_000: 1, "depth": 2})
    assert texts_of_files(tmp_path, [content]) == {"--file0:*": content}


def test_many_large_files_fit_a_record(tmp_path: Path) -> None:
    content = json.dumps({f"width{index}": index for index in range(256)})
    texts = texts_of_files(tmp_path, [content] * 17)
    assert texts["--file0:width255"] == "255"
    assert texts["--file16:*"] == content
    assert len(digests_of(dict.fromkeys(texts, "01234567"))) < 17 * 256


SPEED = (
    *("XLA_FLAGS", "HSA_ENABLE_SDMA", "HIP_FORCE_DEV_KERNARG", "MIOPEN_FIND_MODE", "KMP_AFFINITY", "UCX_TLS"),
    *("FI_PROVIDER", "NEURON_CC_FLAGS", "NCCL_TOPO_FILE", "OMP_NUM_THREADS", "PYTORCH_CUDA_ALLOC_CONF"),
)
NO_WORK = (
    *("TORCH_HOME", "CUDA_HOME", "CUDA_PATH", "CUDA_CACHE_PATH", "TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR"),
    *("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "NEURON_RT_VISIBLE_CORES", "EDITOR", "FIFO", "MY_NCCL_ALGO"),
)


def test_variables_of_every_backend_that_change_the_speed_are_compared() -> None:
    assert recorded_variables(None, SPEED) == tuple(sorted(SPEED))


def test_places_and_variables_of_the_launcher_are_not() -> None:
    assert recorded_variables(None, NO_WORK) == ()


def test_what_the_program_reads_is_compared_unless_it_is_a_secret(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text("os.environ['DATA_DIR'], os.getenv('HF_TOKEN'), os.environ.get('RANK')")
    assert recorded_variables(program, ("DATA_DIR", "HF_TOKEN", "RANK", "OTHER")) == ("DATA_DIR",)


@pytest.mark.parametrize(
    ("arguments", "program"),
    [
        ("run my.py --lr 1", "my.py"),
        ("run --nproc_per_node 2 full_finetune --config a.yaml", "tool run full_finetune"),
        ("run --nproc_per_node=2 full_finetune lr=1", "tool run full_finetune"),
        ("pretrain pythia-14m --config a.yaml more", "tool pretrain pythia-14m"),
        ("--version", "tool"),
    ],
)
def test_the_program_of_a_console_script_is_what_it_is_told_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, program: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.py").touch()
    (tmp_path / "tool").write_text("#!/usr/bin/python\nimport sys\nfrom a import main\nsys.exit(main())\n")
    assert user_program(str(tmp_path / "tool"), arguments.split()) == program
    (tmp_path / "train").write_text("#!/usr/bin/python\nimport torch\n")
    assert user_program("train", arguments.split()) == "train"
