from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchx_cubicml.cli.starter import starter_space
from torchx_cubicml.cli.starter.from_keys import hydra_remarks, is_hydra, is_sweep, listed_keys, typed_keys
from torchx_cubicml.launch import Launch, read_config, write_config
from torchx_cubicml.space.toml import parse_space

if TYPE_CHECKING:
    from torchx_cubicml.space import SearchSpace

HELP = """\
main is powered by Hydra.

== Configuration groups ==
Compose your configuration from those groups (group=option)

model: big, small


== Config ==
Override anything in the config (foo.bar=value)

model:
  n_layer: 2
lr: 0.01
trainer:
  batch_size: 8
  accumulate_grad_batches: 4
  num_workers: 2
  pin_memory: true
  ckpt_path: model.pt
  tags:
  - a
  - b


Powered by Hydra (https://hydra.cc)
Use --hydra-help to view Hydra specific help

"""
SOURCE = "import hydra\n@hydra.main(config_name='config')\ndef main(cfg): pass\n"


@pytest.fixture
def script(tmp_path: Path) -> str:
    (tmp_path / "main.py").write_text(SOURCE)
    return str(tmp_path / "main.py")


def started(launch: Launch, help_text: str = "") -> SearchSpace:
    """The starter of a command, read back; the command must fit it."""
    space = parse_space(starter_space(launch, help_text), where="starter.toml")
    workload, config = read_config(launch, space)
    bound = space.bind(workload=workload, current=config)
    assert bound.why_illegal(config) is None
    return bound


def places(space: SearchSpace) -> dict[str, str]:
    return {item.name: item.binding.name for item in (*space.parameters, *space.workload) if item.binding is not None}


def test_typed_keys() -> None:
    args = ["x.bin", "a.b=1", "+c=2", "++d=e=f", "--lr=1", "db/engine=x", "~g=1", "h@i=2", "a.b=3", "é=1", "--", "z=1"]
    assert typed_keys(args) == {"a.b=": "3", "c=": "2", "d=": "e=f"}


def test_listed_keys() -> None:
    assert listed_keys(HELP, ["lr=1"]) == {
        "model.n_layer=": "2",
        "lr=": "0.01",
        "trainer.batch_size=": "8",
        "trainer.accumulate_grad_batches=": "4",
        "trainer.num_workers=": "2",
        "trainer.pin_memory=": "true",
        "trainer.ckpt_path=": "model.pt",
    }
    assert listed_keys("usage: main.py", []) == {}
    assert listed_keys("== Config ==\nOverride\n\na: [\n", []) == {}


@pytest.mark.parametrize("word", ["model=big", "+model=big", "--config-name=x", "-cn", "~lr", "db@a=b", "~model"])
def test_defaults_of_another_config_are_unknown(word: str) -> None:
    assert listed_keys(HELP, ["lr=1", word]) == {}
    assert hydra_remarks(HELP, [word]) == [
        f"# Only typed keys are offered, as {word} chooses another config: type a key to tune it."
    ]
    assert hydra_remarks(HELP, ["lr=1"]) == []


def test_a_program_of_hydra_is_known_by_its_entry_point() -> None:
    assert is_hydra(SOURCE)
    assert is_hydra("from hydra import compose, main\n@main()\ndef f(): pass")
    assert not is_hydra("from hydra import compose, initialize")
    assert is_sweep(["a=1,2", "-m"])
    assert not is_sweep(["a=1,2", "--m"])


class TestStarter:
    def test_typed_and_listed_keys_are_parameters(self, script: str) -> None:
        args = ("+trainer.batch_size=4", "trainer.pin_memory=false", "seed=3")
        space = started(Launch(program=script, script_args=args, world_size=2), HELP)
        assert places(space) == {
            "micro_batch_size": "trainer.batch_size=",
            "gradient_accumulation_steps": "trainer.accumulate_grad_batches=",
            "data_workers": "trainer.num_workers=",
            "n_layers": "model.n_layer=",
        }
        assert space.tune.args == {
            "hydra.run.dir=": "{scratch}/{launch_id}",
            "trainer.ckpt_path=": "{scratch}/{launch_id}-2.pt",
        }

    def test_what_may_change_the_speed_is_offered(self, script: str) -> None:
        args = ("trainer.prefetch=4", "trainer.pin_memory=false", "model.depth=2", "lr=1", "data.n=3", "eval.n_runs=2")
        text = starter_space(Launch(program=script, script_args=args, world_size=2), HELP)
        offered = [line.removeprefix("# ") for line in text.partition("# Of unknown meaning")[2].splitlines()[1:8]]
        assert offered == [
            "[parameters.prefetch]",
            "choices = [2, 4, 8]",
            'flag = "trainer.prefetch="',
            "[parameters.pin_memory]",
            "choices = [false, true]",
            'flag = "trainer.pin_memory="',
            "default = true # if the command does not set it",
        ]
        assert "# Not tuned: model.depth=, lr=, data.n=, eval.n_runs=\n" in text
        space = parse_space("\n".join(offered), where="x.toml")
        assert read_config(Launch(program="x", script_args=args), space)[1] == {"prefetch": 4, "pin_memory": False}

    def test_a_sweep_is_left_alone(self, script: str) -> None:
        args = ("trainer.batch_size=4,8", "sharding=FULL_SHARD,NO_SHARD", "-m")
        launch = Launch(program=script, script_args=args, world_size=2)
        assert list(places(started(launch))) == ["omp_num_threads"]
        text = starter_space(launch, "")
        assert "# This command trains several times in one job (multirun)" in text
        assert '"hydra.sweep.dir=" = "{scratch}/{launch_id}"' in text
        Path(script).write_text(f"{Path(script).read_text()}\nin the syntax of another Python\n")
        assert '"hydra.sweep.dir=" = "{scratch}/{launch_id}"' in starter_space(launch, "")

    def test_quotes_are_not_part_of_a_value(self, script: str) -> None:
        args = ("sharding='FULL_SHARD'", 'out_dir="a/b.pt"')
        space = started(Launch(program=script, script_args=args, world_size=2))
        assert space.parameters[0].choices == ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD")
        assert space.tune.args["out_dir="] == "{scratch}/{launch_id}-2.pt"

    def test_a_key_for_evaluation_is_no_batch(self) -> None:
        space = started(Launch(program="x.py", script_args=("eval.batch_size=4", "train.batch_size=2"), world_size=1))
        assert places(space)["micro_batch_size"] == "train.batch_size="

    def test_without_hydra_nothing_is_redirected_to_it(self) -> None:
        assert started(Launch(program="x.py", script_args=("batch_size=4",), world_size=1)).tune.args == {}
        own = started(Launch(program="x.py", script_args=("batch_size=4", "hydra.run.dir=out"), world_size=1))
        assert own.tune.args == {"hydra.run.dir=": "{scratch}/{launch_id}"}

    def test_the_help_of_the_program_is_read(self, script: str) -> None:
        from torchx_cubicml.cli.starter.script import script_help

        text = textwrap.dedent("""\
            import sys
            # like @hydra.main
            print(sys.argv[1:])
        """)
        with open(script, "w") as file:  # noqa: PTH123 - a str
            file.write(text)
        assert script_help(Launch(program=script)) == "['--help']\n"


NAMES = st.sampled_from(["batch_size", "accumulate", "n_layer", "num_workers", "sharding", "lr", "prefetch", "out_dir"])
SECTIONS = st.sampled_from(["", "trainer.", "a.b_c.", "eval.", "model.", "hydra.", "x-y.", "+t.", "++t."])
TEXTS = st.sampled_from(
    [
        "4",
        "1",
        "0",
        "0.1",
        "true",
        "False",
        "FULL_SHARD",
        "'NO_SHARD'",
        '"2"',
        "1,2",
        "[1,2]",
        "${lr}",
        "null",
        "",
        "a/b",
    ]
)
WORDS = st.tuples(SECTIONS, NAMES, TEXTS).map(lambda parts: f"{parts[0]}{parts[1]}={parts[2]}")


@settings(deadline=None, max_examples=100)
@given(args=st.lists(WORDS | st.sampled_from(["-m", "model=big", "~a", "db/x=1"]), max_size=7), listed=st.booleans())
def test_generated_commands_are_started_loaded_and_rewritten(
    args: list[str], listed: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    script = tmp_path_factory.getbasetemp() / "hydra_main.py"
    script.write_text(SOURCE)
    launch = Launch(program=str(script), script_args=tuple(args), world_size=2)
    space = parse_space(starter_space(launch, HELP if listed else ""), where="starter.toml")
    workload, config = read_config(launch, space)
    bound = space.bind(workload=workload, current=config)
    repeated = len({word.lstrip("+").partition("=")[0] for word in args}) < len(args)
    for other in bound.sample(3, rng=np.random.default_rng(0)) if not repeated else ():
        written = write_config(launch, space, other)
        assert read_config(written, space)[1] == other
        tuned = {place.rstrip("=") for place in places(bound).values()}
        before = [word for word in args if word.lstrip("+").partition("=")[0] not in tuned]
        after = [word for word in written.script_args if word.lstrip("+").partition("=")[0] not in tuned]
        assert before == after
