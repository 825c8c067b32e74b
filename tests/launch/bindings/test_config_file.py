from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.launch import Launch, patches_of, read_config, write_config
from torchx_cubicml.launch.config_text import parse_document
from torchx_cubicml.space.toml import parse_space

if TYPE_CHECKING:
    from pathlib import Path

    from torchx_cubicml.space import SearchSpace

CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "zero_optimization": {"stage": 2, "overlap_comm": True, "reduce_bucket_size": 2e8},
    "precision": "auto",
    "layers": ["FULL_SHARD", "NO_SHARD"],
}
FILES = {
    "c.json": json.dumps(CONFIG),
    "c.yaml": "train_micro_batch_size_per_gpu: 4\nzero_optimization: {stage: 2, overlap_comm: yes, "
    "reduce_bucket_size: 2.0e+8}\nprecision: auto\nlayers:\n- FULL_SHARD\n- NO_SHARD\n",
    "c.toml": 'train_micro_batch_size_per_gpu = 4\nprecision = "auto"\nlayers = ["FULL_SHARD", "NO_SHARD"]\n'
    "[zero_optimization]\nstage = 2\noverlap_comm = true\nreduce_bucket_size = 2e8\n",
}
SPACE = """
[parameters.stage]
choices = [1, 2, 3]
file = "{place}"
key = "zero_optimization.stage"
[parameters.overlap]
choices = [false, true]
file = "{place}"
key = "zero_optimization.overlap_comm"
[parameters.micro_batch_size]
choices = [1, 2, 4, 8]
file = "{place}"
key = "train_micro_batch_size_per_gpu"
[parameters.bucket]
choices = [1e8, 2e8]
file = "{place}"
key = "zero_optimization.reduce_bucket_size"
[parameters.sharding]
choices = ["FULL_SHARD", "NO_SHARD"]
per_layer = 2
file = "{place}"
key = "layers"
[parameters.added]
choices = ["a b", "$HOME \\"'é\\n"]
default = "a b"
file = "{place}"
key = "of.ours.text"
"""
OWN = {
    "stage": 2,
    "overlap": True,
    "micro_batch_size": 4,
    "bucket": 2e8,
    "sharding": ("FULL_SHARD", "NO_SHARD"),
    "added": "a b",
}
OTHER = {
    "stage": 3,
    "overlap": False,
    "micro_batch_size": 1,
    "bucket": 1e8,
    "sharding": ("NO_SHARD", "NO_SHARD"),
    "added": "$HOME \"'é\n",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def space(place: str) -> SearchSpace:
    return parse_space(SPACE.replace("{place}", place), where="x.toml")


def launch(*args: str, **env: str) -> Launch:
    return Launch(program="train.py", script_args=args, env=env, world_size=2)


PLACES = {
    "flag and value": ("--config", lambda name: launch("--a", "--config", name, "b")),
    "joined": ("--config", lambda name: launch(f"--config={name}")),
    "key": ("run.config=", lambda name: launch("x", f"run.config={name}")),
    "variable": ("$CONFIG", lambda name: launch("x", CONFIG=name)),
    "position": ("c.*", lambda name: launch("train", name, "--lr", "1")),
    "path in a flag": ("c.*", lambda name: launch(f"--anything={name}")),
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(("place", "make"), PLACES.values(), ids=PLACES)
def test_values_are_read_and_written(folder: Path, name: str, place: str, make) -> None:
    typed, read = make(name), space(place)
    assert read_config(typed, read)[1] == OWN
    assert write_config(typed, read, OWN) == typed
    written = write_config(typed, read, OTHER)
    assert read_config(written, read)[1] == OTHER
    assert replace(written, files={}) == typed
    (patch,) = patches_of(written)
    assert patch.path == name
    assert dict(patch.values)["zero_optimization", "stage"] == 3
    assert (patch.argument is None) == (place == "$CONFIG")
    assert {path.name: path.read_text() for path in folder.iterdir()} == FILES


@settings(max_examples=40)
@given(
    config=st.fixed_dictionaries(
        {name: st.sampled_from([OWN[name], OTHER[name]]) for name in OWN},
    )
)
def test_written_values_are_read_back(tmp_path_factory: pytest.TempPathFactory, config: dict[str, object]) -> None:
    folder = tmp_path_factory.mktemp("files")
    for name, text in FILES.items():
        (folder / name).write_text(text)
        typed, read = launch("--config", str(folder / name)), space("--config")
        written = write_config(typed, read, config)
        assert read_config(written, read)[1] == config
        assert write_config(written, read, config) == written


NOT_READ = {
    "not named": (launch("--lr", "1"), "--config must name one config file, but it names no file"),
    "not here": (launch("--config", "gone.json"), "gone.json, named by the command, cannot be read here"),
    "named twice": (launch("--config", "c.json", "--config", "c.yaml"), "names more than one file"),
    "no config file": (launch("--config", "c.ini"), "unsupported format; choose from .json, .yaml, .yml, .toml"),
    "damaged": (launch("--config", "damaged.json"), "damaged.json cannot be read"),
    "not text": (launch("--config", "binary.json"), "binary.json, named by the command, is not UTF-8 text"),
    "a folder": (launch("--config", "folder.json"), "folder.json, named by the command, cannot be read here"),
    "left open": (launch("--config", "auto.json"), "train_micro_batch_size_per_gpu in auto.json is 'auto'"),
    "of another kind": (launch("--config", "kind.json"), "zero_optimization.stage in kind.json of parameter stage"),
    "missing": (
        launch("--config", "missing.json"),
        "zero_optimization.stage in missing.json of parameter stage is missing",
    ),
}


@pytest.mark.parametrize(("typed", "message"), NOT_READ.values(), ids=NOT_READ)
def test_unreadable_files_are_reported(folder: Path, typed: Launch, message: str) -> None:
    (folder / "c.ini").write_text("a = 1")
    (folder / "damaged.json").write_text("{")
    (folder / "binary.json").write_bytes(b"\xff\xfe")
    (folder / "folder.json").mkdir()
    (folder / "auto.json").write_text(json.dumps({**CONFIG, "train_micro_batch_size_per_gpu": "auto"}))
    (folder / "kind.json").write_text(json.dumps({**CONFIG, "zero_optimization": {"stage": {"a": 1}}}))
    (folder / "missing.json").write_text("{}")
    with pytest.raises(LaunchError) as caught:
        read_config(typed, space("--config"))
    assert message in str(caught.value)


def test_a_value_shared_by_several_keys_is_not_written(folder: Path) -> None:
    (folder / "shared.yaml").write_text("base: &base {stage: 2}\nzero_optimization: *base\n")
    read = parse_space(
        '[parameters.stage]\nchoices = [1, 2]\nfile = "--config"\nkey = "zero_optimization.stage"', where="x.toml"
    )
    typed = launch("--config", "shared.yaml")
    assert read_config(typed, read)[1] == {"stage": 2}
    with pytest.raises(LaunchError, match="zero_optimization is an anchor or an alias"):
        write_config(typed, read, {"stage": 1})


def test_a_fact_of_the_workload_can_stand_in_a_file(folder: Path) -> None:
    read = parse_space(
        '[workload]\nbatch = { file = "--config", key = "train_micro_batch_size_per_gpu" }\n'
        '[parameters.stage]\nchoices = [1, 2]\nfile = "--config"\nkey = "zero_optimization.stage"',
        where="x.toml",
    )
    assert read_config(launch("--config", "c.toml"), read)[0]["batch"] == 4


def test_the_copy_is_of_the_file_that_was_read(folder: Path) -> None:
    written = write_config(launch("--config", "c.yaml"), space("--config"), OTHER)
    (patch,) = patches_of(written)
    (folder / "c.yaml").write_text(f"{FILES['c.yaml']}# a remark\n")
    assert patches_of(written)[0].digest != patch.digest
    assert parse_document((folder / "c.yaml").read_text(), path="c.yaml")["zero_optimization"]["stage"] == 2
