from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.cli.starter import saving_call, starter_space, unredirected_outputs
from torchx_cubicml.launch import Launch, change_for_profiling
from torchx_cubicml.space.toml import parse_space

if TYPE_CHECKING:
    from pathlib import Path

    from torchx_cubicml.space import TuneChanges

SAVES = "import torch\ntorch.save({}, 'model.pt')\n"
HINT = (
    "and no flag, key or variable was found that names their place.\n"
    "# Each launch of a tune would save them too. If there is such a flag, redirect it:\n"
    "# [tune]\n"
    '# args = { "--out_dir" = "{scratch}/{launch_id}" }\n'
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def text_of(source: str, *args: str, **env: str) -> str:
    with open("train.py", "w") as file:  # noqa: PTH123 - in the current folder
        file.write(source)
    return starter_space(Launch(program="train.py", script_args=args, env=env, world_size=2), "")


def changes(source: str, *args: str, **env: str) -> TuneChanges:
    return parse_space(text_of(source, *args, **env), where="x.toml").tune


@pytest.mark.parametrize("args", [(), ("--lr", "0.1")])
def test_without_outputs_there_is_no_section(args: tuple[str, ...]) -> None:
    assert "[tune]" not in text_of("print('x')", *args)


def test_checkpoints_without_a_place_are_named() -> None:
    text = text_of(SAVES, "--lr", "0.1")
    assert f"# torch.save in train.py saves checkpoints, {HINT}" in text
    uncommented = text.replace("# [tune]", "[tune]").replace("# args", "args")
    assert parse_space(uncommented, where="x.toml").tune.args == {"--out_dir": "{scratch}/{launch_id}"}


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("--out_dir=a", "--out_dir"),
        ("--output-dir=a", "--output-dir"),
        ("--save=a", "--save"),
        ("--ckpt=a", "--ckpt"),
        ("--ckpt-dir=a", "--ckpt-dir"),
        ("--logdir=a", "--logdir"),
        ("--work-dir=a", "--work-dir"),
        ("--trainer.snapshot_path=a", "--trainer.snapshot_path"),
        ("--results=a", "--results"),
        ("out_dir=a", "out_dir="),
        ("+job.save_dir=a", "job.save_dir="),
        ("hydra.run.dir=a", "hydra.run.dir="),
    ],
)
def test_flags_and_keys_of_outputs_are_redirected(word: str, name: str) -> None:
    assert changes(SAVES, word).args == {name: "{scratch}/{launch_id}"}
    assert "and no flag" not in text_of(SAVES, word)
    space = parse_space(text_of(SAVES, word), where="x.toml")
    launch = Launch(program="train.py", script_args=(word,))
    assert unredirected_outputs(launch, space) == ()
    profiled = change_for_profiling(launch, space, {"scratch": "s", "launch_id": "1"})
    assert profiled.script_args == (f"{word.partition('=')[0]}=s/1",)


@pytest.mark.parametrize(
    ("source", "env", "names"),
    [
        ("import os\nout = os.environ['OUT_DIR']", {}, ["OUT_DIR"]),
        ("import os\nout = os.environ.get('CKPT_PATH', 'x')", {}, ["CKPT_PATH"]),
        ("import os\nout = os.getenv('LOG_DIR')", {}, ["LOG_DIR"]),
        ("import os\nos.environ['OUT_DIR'] = 'x'", {}, []),
        ("", {"TENSORBOARD_DIR": "a", "HOME": "/root", "SAVE_EVERY": "3", "DATA_DIR": "d"}, ["TENSORBOARD_DIR"]),
        ("import os\nos.getenv('LOG_LEVEL'), os.getenv('LOCAL_RANK'), os.getenv(name)", {}, []),
        ("import os\nos.getenv('CHECKPOINT_DIR')", {"CHECKPOINT_DIR": "a/b"}, ["CHECKPOINT_DIR"]),
    ],
)
def test_variables_of_outputs_are_redirected(source: str, env: dict[str, str], names: list[str]) -> None:
    assert changes(source, **env).env == dict.fromkeys(names, "{scratch}/{launch_id}")


@pytest.mark.parametrize("source", ["import wandb", "from wandb.sdk import init", "import os, wandb as w"])
def test_a_script_that_imports_wandb_runs_without_it(source: str) -> None:
    assert changes(source).env == {"WANDB_MODE": "disabled"}
    both = changes(f"{source}\nimport os\nos.getenv('OUT_DIR')")
    assert both.env == {"OUT_DIR": "{scratch}/{launch_id}", "WANDB_MODE": "disabled"}


def test_the_hint_stands_before_the_rest_of_the_section() -> None:
    text = text_of(f"import wandb\n{SAVES}")
    hint = HINT.replace("# [tune]\n", "")
    assert f"{hint}[tune] # redirects" in text


def test_a_trainer_writes_where_its_table_says(folder: Path) -> None:
    (folder / "config.py").write_text("batch_size = 4")
    source = f"exec(open('configurator.py').read())\n{SAVES}"
    text = text_of(source, "config.py", "--batch_size=8", "--log=x")
    assert "trainer =" not in text.partition("# The parameters of")[0]
    assert '# The parameters of trainer = "nanogpt" need more than this command states:\n# micro_batch_size' in text
    space = parse_space(text, where="x.toml")
    assert space.tune.args == {"--log=": "{scratch}/{launch_id}", "--out_dir=": "{scratch}/{launch_id}-2"}
    assert [place.binding.name for place in space.parameters if place.binding] == ["--batch_size=", "OMP_NUM_THREADS"]


def test_checkpoints_of_a_trainers_script_are_named() -> None:
    args = ("--micro-batch-size", "2", "--global-batch-size", "8", "--num-layers", "4", "--num-attention-heads", "4")
    assert 'trainer = "megatron-lm"' in text_of(SAVES, *args)
    assert HINT in text_of(SAVES, *args)
    assert "[tune]" not in text_of("", *args)
    assert saving_call(Launch(program="train.py")) == ""


def test_the_script_of_accelerate_is_read(folder: Path) -> None:
    (folder / "acc.yaml").write_text("fsdp_config:\n  fsdp_forward_prefetch: false\n")
    (folder / "fit.py").write_text(f"import wandb\n{SAVES}")
    args = ("--config_file", "acc.yaml", "--num_machines=1", "fit.py", "--lr", "0.1")
    text = starter_space(Launch(program="accelerate.commands.launch", is_module=True, script_args=args), "")
    assert "# torch.save in fit.py saves checkpoints" in text
    assert parse_space(text, where="x.toml").tune.env == {"WANDB_MODE": "disabled"}
    assert "# Accumulation" not in text
