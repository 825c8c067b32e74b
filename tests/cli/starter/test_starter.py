from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchx_cubicml.cli.starter import script, script_help, starter_space, unredirected_outputs
from torchx_cubicml.cli.starter.script import parse_help
from torchx_cubicml.launch import Launch, change_for_profiling, read_config
from torchx_cubicml.space.toml import parse_space

if TYPE_CHECKING:
    from torchx_cubicml.space import SearchSpace

ROOT = Path(__file__).parents[3]
COMMANDS = json.loads((Path(__file__).parents[2] / "data" / "trainers.json").read_text())
EXAMPLE = str(ROOT / "examples" / "train_gpt.py")

HELP = """\
usage: train.py [-h] [--batch_size BATCH_SIZE]

Trains.

options:
  -h, --help            show this help message and exit
  -b BATCH_SIZE, --batch_size BATCH_SIZE
                        samples per forward pass (default: 8)
  --accumulate ACCUMULATE
                        micro batches per step
                        (default: 2)
  --n_layer N_LAYER     layers (default: 4)
  --sharding STRATEGY[,STRATEGY...]
                        one per layer: NO_SHARD, FULL_SHARD or, with care,
                        SHARD_GRAD_OP (default: FULL_SHARD)
  --activation_checkpointing {none,full}
  --precision {fp32,bf16}
                        number format (default: fp32)
  --compile, --no-compile
                        compile (default: False)
  --resume RESUME       checkpoint to go on from (default: None)
  --out_dir OUT_DIR     where the checkpoint goes (default: out)
  --log_every LOG_EVERY
  --save_model {yes,no}
"""


def launch(command: str = "", **more: object) -> Launch:
    args = tuple(shlex.split(command))
    return Launch(program="train.py", script_args=args, **({"world_size": 2} | more))


def started(command: str, help_text: str = HELP, **more: object) -> SearchSpace:
    """The starter of a command, read back; the command must fit it."""
    user = launch(command, **more)
    space = parse_space(starter_space(user, help_text), where="starter.toml")
    workload, config = read_config(user, space)
    bound = space.bind(workload=workload, current=config)
    assert bound.why_illegal(config) is None
    return bound


def choices(space: SearchSpace) -> dict[str, tuple[object, ...]]:
    return {parameter.name: parameter.choices for parameter in space.parameters}


class TestParameters:
    def test_from_command_and_help(self) -> None:
        space = started("--batch_size 4 --accumulate 8 --activation_checkpointing none")
        assert choices(space) == {
            "micro_batch_size": (1, 2, 4, 8, 16, 32),
            "gradient_accumulation_steps": (),
            "sharding_strategy": ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"),
            "activation_checkpointing": ("none", "full"),
        }
        assert space.parameters[2].per_layer == "n_layers"
        assert [fact.name for fact in space.workload] == ["n_layers"]
        assert space.facts["global_batch_size"] == 64
        assert space.size() == 6 * 3**4 * 2

    def test_from_the_command_alone(self) -> None:
        space = started("--batch_size=6 --accumulate=2 --sharding=FULL_SHARD,NO_SHARD,NO_SHARD", "")
        assert choices(space)["micro_batch_size"] == (1, 2, 4, 6, 8)
        assert space.parameters[2].per_layer == 3

    def test_from_the_help_alone(self) -> None:
        assert choices(started(""))["micro_batch_size"] == (1, 2, 4, 8, 16)

    def test_one_strategy_serves_all_layers_by_default(self) -> None:
        assert started("--sharding NO_SHARD --n_layer 4", "").parameters[0].per_layer is None

    def test_a_list_of_another_length_than_the_layers(self) -> None:
        assert started("--sharding NO_SHARD,FULL_SHARD --n_layer 4", "").parameters[0].per_layer == 2

    def test_parameters_that_change_the_training_are_not_tuned(self) -> None:
        text = starter_space(launch("--compile --precision bf16"), HELP)
        assert "# [parameters.precision] # changes the numerics of the training: uncomment it only on purpose\n" in text
        assert "# [parameters.compile]" in text
        assert not {"precision", "compile"} & choices(parse_space(text, where="x")).keys()

    def test_uncommented_it_is_tuned(self) -> None:
        text = starter_space(launch("--compile --precision bf16"), HELP)
        lines = [line.removeprefix("# ") if line.startswith("# [") else line for line in text.splitlines()]
        lines = [
            line.removeprefix("# ") if line.startswith(("# choices", "# flag", "# default")) else line for line in lines
        ]
        space = parse_space("\n".join(lines), where="x")
        assert choices(space)["precision"] == ("fp32", "bf16")
        assert choices(space)["compile"] == (False, True)
        assert read_config(launch("--compile --precision bf16"), space)[1]["compile"] is True

    def test_the_micro_batch_is_fixed_without_accumulation(self) -> None:
        space = started("--batch_size 4 --tensor-model-parallel-size 2", "")
        assert choices(space) == {"micro_batch_size": (4,), "tp_degree": (2,), "omp_num_threads": (1, 2, 4)}

    def test_a_mesh(self) -> None:
        space = started(
            "--micro-batch-size 2 --grad-accum 4 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 1 "
            "--num-layers 6 --num-attention-heads 4",
            "",
            world_size=16,
        )
        assert choices(space)["tp_degree"] == choices(space)["pp_degree"] == (1, 2, 4, 8)
        assert [rule.source for rule in space.constraints] == ["n_layers % pp_degree == 0"]
        degrees = {(config["tp_degree"], config["pp_degree"]) for config in space.configs()}
        assert degrees == {(tp, pp) for tp in (1, 2, 4) for pp in (1, 2)}

    def test_switches(self) -> None:
        space = started("--gradient_checkpointing", "")
        assert choices(space) == {"activation_checkpointing": (False, True)}

    @pytest.mark.parametrize(
        "command",
        [
            "--batch_size auto --accumulate 2",
            "--sharding zero3",
            "--activation_checkpointing blocks",
            "--compile inductor",
            "--n_layer deep",
            "--batch_size",
            "--tp 2",
            "train here",
            "",
        ],
    )
    def test_unknown_flags_are_left_alone(self, command: str) -> None:
        space = started(command, "")
        assert choices(space).keys() <= {"omp_num_threads", "gradient_accumulation_steps"}

    def test_two_flags_of_one_meaning(self) -> None:
        space = started("--micro_batch_size 4 --batch_size 64 --accumulate 2", "")
        assert space.parameters[0].binding is not None
        assert space.parameters[0].binding.name == "--micro_batch_size"

    def test_flags_left_as_they_are_are_named(self) -> None:
        assert "# Not tuned: --lr, --seed\n" in starter_space(launch("--lr 0.1 --seed 3 --batch_size 2"), "")


class TestTune:
    @pytest.mark.parametrize(
        ("command", "help_text", "args"),
        [
            ("", HELP, {"--out_dir": "{scratch}/{launch_id}"}),
            ("--out_dir=/runs/7", HELP, {"--out_dir": "{scratch}/{launch_id}"}),
            (
                "--save /a --log-file b.log",
                "",
                {"--save": "{scratch}/{launch_id}", "--log-file": "{scratch}/{launch_id}-2.log"},
            ),
            ("--run_name best", "", {"--run_name": "{launch_id}"}),
            ("--experiment first --wandb_id=x", "", {"--experiment": "{launch_id}", "--wandb_id": "{launch_id}"}),
            (
                "--default_root_dir a --project_root . --cache_dir c",
                "",
                {"--default_root_dir": "{scratch}/{launch_id}"},
            ),
            ("--resume a.pt --log_every 10 --save_steps 5 --max_out 3 --load x", "", {}),
        ],
    )
    def test_outputs_are_redirected(self, command: str, help_text: str, args: dict[str, str]) -> None:
        assert started(command, help_text).tune.args == args

    def test_wandb_is_kept_out(self) -> None:
        assert started("--wandb_project p", "").tune.env == {"WANDB_MODE": "disabled"}
        assert started("--tracker wandb", "").tune.env == {"WANDB_MODE": "disabled"}
        assert started("", "", env={"WANDB_PROJECT": "p"}).tune.env == {"WANDB_MODE": "disabled"}


class TestUnredirectedOutputs:
    @pytest.mark.parametrize(
        ("command", "flags"),
        [
            ("--out_dir runs", ("--out_dir",)),
            ("--outputDir=runs --lr 3", ("--outputDir",)),
            ("--resume --save x", ("--resume", "--save")),
            ("--trainer.log-path=p", ("--trainer.log-path",)),
            ("hydra.output.dir=p lr=3", ("hydra.output.dir",)),
            ("--run_name a --tensorboard", ("--run_name", "--tensorboard")),
            ("--steps 3 --batch_size 4 --about x --sharding NO_SHARD", ()),
            ("--save_interval 10 --log_level info --max_out 5 --no-save --wandb false --logdir /dev/null", ()),
            ("--activation_checkpointing full --gradient_checkpointing", ()),
            (
                "--default_root_dir runs --trainer.default_root_dir=runs",
                ("--default_root_dir", "--trainer.default_root_dir"),
            ),
            ("--experiment first --exp_name=b --snapshotPath s", ("--experiment", "--exp_name", "--snapshotPath")),
            ("--save_strategy epoch --output_format json --load_in_8bit --overwrite_output_dir --use-checkpoint", ()),
            ("--load_balancing aux --log_format json --cache_dir c --logging_config l.yaml --save_total_limit 2", ()),
        ],
    )
    def test_destinations_are_recognised(self, command: str, flags: tuple[str, ...]) -> None:
        space = parse_space('[parameters.a]\nchoices = [1]\nenv = "A"\n', where="x")
        assert unredirected_outputs(launch(command), space) == flags

    def test_declared_and_redirected_outputs_are_skipped(self) -> None:
        space = parse_space(
            '[workload]\nwidth = { flag = "--out_width" }\n[parameters.a]\nchoices = ["x"]\nflag = "--log_to"\n'
            '[tune]\nargs = { "--save" = "x" }\nenv = { WANDB_MODE = "disabled" }\n',
            where="x",
        )
        command = launch("--out_width wide --log_to x --save y --wandb_project p --resume r")
        assert unredirected_outputs(command, space) == ("--resume",)

    def test_the_starter_redirects_every_output(self) -> None:
        command = launch("--out_dir runs --logging-dir l --wandb --resume r.pt")
        space = parse_space(starter_space(command, HELP), where="x")
        assert unredirected_outputs(command, space) == ("--resume",)


class TestScriptHelp:
    def script(self, tmp_path: Path, text: str) -> Launch:
        path = tmp_path / "train.py"
        path.write_text(textwrap.dedent(text))
        return Launch(program=str(path))

    def test_help_is_read_from_a_script(self, tmp_path: Path) -> None:
        reasons: list[str] = []
        user = self.script(
            tmp_path,
            """\
            import argparse, os
            parser = argparse.ArgumentParser()
            parser.add_argument("--batch_size", default=os.environ["SIZE"], help="(default: %(default)s)")
            parser.parse_args()
            """,
        )
        user = Launch(program=user.program, env={"SIZE": "7"})
        assert parse_help(script_help(user, report=reasons.append))[1].default == "7"
        assert reasons == []

    def test_help_is_read_from_a_module(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "pkg").mkdir()
        (tmp_path / "pkg" / "train.py").write_text("import argparse\nargparse.ArgumentParser().parse_args()\n")
        monkeypatch.chdir(tmp_path)
        assert "usage: train.py" in script_help(Launch(program="pkg.train", is_module=True))

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("import sys\nopen('trained', 'w')", "no argument parser found in"),
            ("import argparse\nx =", "train.py cannot be read as Python, so its --help was not read"),
            ("import argparse\nraise ValueError('no GPU')", "exit code 1: ValueError: no GPU"),
            ("import argparse, time\ntime.sleep(60)", "timed out"),
            ("import argparse\ninput()", "exit code 1: EOFError"),
        ],
        ids=["no parser", "no Python", "raises", "hangs", "asks"],
    )
    def test_missing_help_has_a_reason(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, reason: str
    ) -> None:
        monkeypatch.setattr(script, "HELP_TIMEOUT_S", 1.0)
        monkeypatch.chdir(tmp_path)
        reasons: list[str] = []
        assert script_help(self.script(tmp_path, text), report=reasons.append) == ""
        assert reason in reasons[0]
        assert not (tmp_path / "trained").exists()

    @pytest.mark.parametrize(
        "user", [Launch(program=""), Launch(program="gone.py"), Launch(program="gone", is_module=True)]
    )
    def test_no_file(self, user: Launch) -> None:
        reasons: list[str] = []
        assert script_help(user, report=reasons.append) == ""
        assert "not found here, so its --help was not read" in reasons[0]


def test_the_example_script() -> None:
    user = Launch(program=EXAMPLE, script_args=("--batch_size", "4", "--steps", "20"), world_size=2)
    help_text = script_help(user)
    space = parse_space(starter_space(user, help_text), where="starter.toml")
    workload, config = read_config(user, space)
    shipped = parse_space((ROOT / "examples" / "gpt.toml").read_text(), where="gpt.toml")
    assert (workload, config) == read_config(user, shipped)
    assert space.tune == shipped.tune
    assert {item.name for item in space.parameters} == {item.name for item in shipped.parameters}
    known = {flag.name for flag in parse_help(help_text)}
    places = [item.binding for item in (*shipped.parameters, *shipped.workload)]
    assert {place.name for place in places if place} <= known


WORDS = [
    "--batch_size",
    "--accumulate=3",
    "4",
    "0",
    "-1",
    "FULL_SHARD,NO_SHARD",
    "--sharding",
    "--n_layer",
    "--out_dir",
]
WORDS += ["--compile", "--precision", "--wandb", "--", "a=b", "--resume", "-x", "#", "é", "'", '"', "\\", "a b"]
WORDS += ["--save=\x7f", "--log=\n"]


@settings(max_examples=200)
@given(
    st.lists(st.sampled_from(WORDS), max_size=10),
    st.text(max_size=200) | st.just(HELP),
    st.none() | st.integers(1, 64),
)
def test_every_starter_is_a_space_file(args: list[str], help_text: str, world_size: int | None) -> None:
    user = Launch(program="tr\nain.py", script_args=tuple(args), world_size=world_size)
    space = parse_space(starter_space(user, help_text), where="starter.toml")
    _, config = read_config(user, space)
    assert config.keys() == {parameter.name for parameter in space.parameters}


def test_help_of_other_tools() -> None:
    text = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--help"], capture_output=True, text=True, check=True
    ).stdout
    flags = {flag.name: flag for flag in parse_help(text)}
    assert not flags["--requirement"].is_switch
    assert flags["--no-deps"].is_switch


class TestTrainers:
    @pytest.mark.parametrize("trainer", COMMANDS)
    def test_a_documented_command_is_recognised(self, trainer: str, tmp_path: Path) -> None:
        script = tmp_path / "train.py"
        script.write_text("exec(open('configurator.py').read())" if trainer == "nanogpt" else "import argparse")
        user = Launch(program=str(script), script_args=tuple(shlex.split(COMMANDS[trainer]["command"])), world_size=8)
        text = starter_space(user, "")
        assert f'trainer = "{trainer}"' in text
        space = parse_space(text, where="starter.toml")
        workload, config = read_config(user, space)
        bound = space.bind(workload=workload, current=config)
        assert config in bound
        assert bound.size() > 3
        assert text.count("not available") == 5 * (trainer == "torchtitan")  # of what its command does not say
        assert unredirected_outputs(user, space) == ()

    def test_megatron(self) -> None:
        command = (
            COMMANDS["megatron-lm"]["command"]
            .replace("--micro-batch-size 2", "--micro-batch-size 6")
            .replace("128", "96")
        )
        text = starter_space(launch(command, world_size=8), "")
        assert "micro_batch_size = [1, 2, 4, 6, 8, 16, 32] # now 6\n" in text
        assert 'tp_degree = "auto" # 1, 2, 4, 8; now 2\n' in text
        assert 'activation_checkpointing = "auto" # "none", "selective", "full"; now "none"\n' in text
        assert "[tune] # redirects what profiling launches write" in text
        assert 'args = { "--save" = "{scratch}/{launch_id}" }' in text

    def test_hidden_settings_are_named(self) -> None:
        user = Launch(
            program="torchtitan.train",
            is_module=True,
            script_args=("--module", "llama3", "--activation_checkpoint.mode", "full"),
            world_size=8,
        )
        text = starter_space(user, "")
        assert (
            '# tp_degree = "auto" # not available: flag --training.local_batch_size of workload fact micro_batch'
            in text
        )
        space = parse_space(text, where="x")
        assert choices(space) == {"activation_checkpointing": ("none", "selective", "full")}

    def test_an_unmatched_command_gets_the_general_starter(self) -> None:
        user = Launch(program="torchtitan.train", is_module=True, script_args=("--module", "llama3"), world_size=8)
        assert choices(parse_space(starter_space(user, ""), where="x")) == {"omp_num_threads": (1, 2, 4)}

    def test_nanogpt_writes_elsewhere_while_profiled(self, tmp_path: Path) -> None:
        (tmp_path / "train.py").write_text("exec(open('configurator.py').read())")
        for args, tuned in (((), {"--out_dir="}), (("--out_dir=mine", "--log=x"), {"--out_dir=", "--log="})):
            user = Launch(program=str(tmp_path / "train.py"), script_args=args, world_size=1)
            space = parse_space(starter_space(user, ""), where="x")
            assert set(space.tune.args) == tuned
            changed = change_for_profiling(user, space, {"scratch": "s", "launch_id": "1"})
            assert changed.script_args == ("--out_dir=s/1", "--log=s/1-2")[: len(tuned)]

    @pytest.mark.parametrize(
        "command",
        [
            "--micro-batch-size 2",
            "--batch_size=8 --gradient_accumulation_steps=4",
            "--output_dir x",
            "--zero_stage 2",
            "",
        ],
    )
    def test_others_are_not(self, command: str) -> None:
        assert "trainer =" not in starter_space(launch(command), HELP)


def test_the_objective_is_left_to_what_is_measured() -> None:
    text = starter_space(Launch(program="fit.py", script_args=("--batch_size", "4"), world_size=2), "")
    space = parse_space(text, where="fit.toml")
    assert not space.is_objective_stated
    assert '# objective = "samples_per_second"' in text


SOURCE = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--micro-batch-size", type=int, default=2)
parser.add_argument("--accum-steps", type=int, default=16)
parser.add_argument("--num-workers", type=int, default=0)
parser.add_argument("--bucket-cap-mb", type=int, default=LATER)
"""


@pytest.mark.parametrize("flag", ["--accum-steps", "--grad_accumulation", "--accumulation-iters", "--accum"])
def test_accumulation_by_its_many_names(tmp_path: Path, flag: str) -> None:
    space = started(f"--micro-batch-size 2 {flag} 8", "")
    assert space.parameters[1].derive is not None
    assert choices(space)["micro_batch_size"] == (1, 2, 4, 8, 16)


def test_defaults_that_the_help_does_not_state_are_those_of_the_source(tmp_path: Path) -> None:
    path = tmp_path / "fit.py"
    path.write_text(SOURCE)
    names = ("micro-batch-size", "accum-steps", "num-workers", "bucket-cap-mb")
    described = "options:\n" + "".join(f"  --{name} {name.upper()}\n" for name in names)
    text = starter_space(Launch(program=str(path), script_args=("--micro-batch-size", "4"), world_size=2), described)
    space = parse_space(text, where="fit.toml")
    assert choices(space)["data_workers"] == (0, 1, 2, 4, 8)
    assert [item.default for item in space.parameters] == [2, 16, 0]
    assert "bucket" not in text  # its default is not a literal


SLOW = """
import argparse, time
time.sleep(100)
parser = argparse.ArgumentParser(add_help=False)
parser.add_argument("data", nargs="?")
group = parser.add_argument_group("model")
group.add_argument("-b", "--batch-size", type=int, default=64)
group.add_argument("--accum-steps", type=int, default=1)
group.add_argument("--num-classes", type=int, default=10)
group.add_argument("--img-size", type=int, default=224)
group.add_argument("--fused-attn", type=int, default=0)
group.add_argument("--gradient-checkpointing", type=int, default=False)
group.add_argument("--compile", type=str, choices=("off", "on"), default="off")
group.add_argument("--flash", choices=("Yes", "No"), default="No")
group.add_argument("--pin-mem", action=argparse.BooleanOptionalAction, default=True)
group.add_argument("--channels-last", action="store_true")
parser.parse_args()
"""


def test_a_slow_help_is_replaced_by_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "HELP_TIMEOUT_S", 0.5)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "slow.py").write_text(SLOW)
    user = Launch(program="slow.py", script_args=("--batch-size", "32"), world_size=2)
    text = starter_space(user, script_help(user))
    space = parse_space(text, where="slow.toml")
    assert read_config(user, space)[1] == {
        "micro_batch_size": 32,
        "gradient_accumulation_steps": 1,
        "activation_checkpointing": 0,
    }
    assert choices(space)["activation_checkpointing"] == (0, 1)  # a number, for int
    found = dict(re.findall(r"# \[parameters\.(\w+)\].*\n# choices = (.*)\n", text))
    assert found == {
        "compile": '["off", "on"]',
        "fused_attn": "[0, 1]",
        "flash": '["Yes", "No"]',
        "channels_last": "[false, true]",
    }


def test_without_a_help_a_module_beside_the_script_offers_no_flags(tmp_path: Path) -> None:
    (tmp_path / "tool.py").write_text('parser.add_argument("--num-workers", type=int, default=2)')
    (tmp_path / "fit.py").write_text("import tool\n")
    user = Launch(program=str(tmp_path / "fit.py"), world_size=2)
    assert "--num-workers" not in starter_space(user, "")
    assert "default = 2" in starter_space(user, "options:\n  --num-workers N  processes\n")


@pytest.mark.parametrize(("text", "expected"), [("0", (0, 1)), ("1", (0, 1)), ("False", (False, True))])
def test_a_number_stays_a_number(text: str, expected: tuple[object, ...]) -> None:
    described = f"options:\n  --gradient_checkpointing N  trades (default: {text})\n"
    space = started("", described)
    assert repr(choices(space)["activation_checkpointing"]) == repr(expected)
    default = next(item.default for item in space.parameters if item.name == "activation_checkpointing")
    assert repr(default) == repr(type(expected[0])(text == "1"))


def test_without_accumulation_the_lines_to_add_are_there() -> None:
    text = starter_space(Launch(program="fit.py", script_args=("--batch_size", "4"), world_size=2), "")
    lines = text.splitlines()
    start = lines.index("# [parameters.gradient_accumulation_steps]")
    added = [line.removeprefix("# ").replace("--...", "--steps_per_update") for line in lines[start : start + 3]]
    space = parse_space("\n".join([*lines[:start], *added, *lines[start + 3 :]]), where="fit.toml")
    assert next(item for item in space.parameters if item.name == "gradient_accumulation_steps").derive is not None


def test_an_offered_flag_has_the_values_that_the_script_lists() -> None:
    described = "options:\n  --sync-every {0,1}  when to sync (default: 1)\n"
    text = starter_space(Launch(program="fit.py", script_args=("--sync-every", "1"), world_size=2), described)
    assert '# choices = [0, 1]\n# flag = "--sync-every"' in text


def test_an_accumulation_flag_without_a_count_is_not_asked_for() -> None:
    args = ("--batch_size", "4")
    asks = "If a flag sets the accumulation, name it here"
    assert asks in starter_space(Launch(program="x.py", script_args=args, world_size=2), "")
    known = (*args, "--gradient_accumulation_steps", "auto")
    assert asks not in starter_space(Launch(program="x.py", script_args=known, world_size=2), "")
