"""The trainers' tables, against commands in each trainer's documented form."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from torchx_cubicml.errors import LaunchError, SpaceError
from torchx_cubicml.launch import Launch, read_config, with_rule_facts, write_config
from torchx_cubicml.space import SearchSpace, computed_global_batch_size
from torchx_cubicml.space.expression import is_name, parse_expression
from torchx_cubicml.space.toml import parse_space
from torchx_cubicml.space.trainers import STANDARD_PARAMETERS, STANDARD_WORDS, TRAINERS, Trainer

# Of each trainer: parameters of a space file, a command, and what is read of it: workload facts and config.
COMMANDS = json.loads((Path(__file__).parents[2] / "data" / "trainers.json").read_text())
MEGATRON, TORCHTITAN, HUGGING_FACE, DEEPSPEED, NANOGPT = (case["command"] for case in COMMANDS.values())


_KNOWN_OTHERWISE = {
    *("dp_degree", "world_size", "gradient_accumulation_steps", "n_layers", "n_heads", "n_kv_heads", "n_experts")
}


def space_of(trainer: str, *parameters: str, rest: str = "") -> SearchSpace:
    lines = [f'trainer = "{trainer}"', rest, *(["[parameters]"] if parameters else []), *parameters]
    return parse_space("\n".join(lines), where="s.toml")


def launch(command: str) -> Launch:
    return Launch(program="train.py", script_args=tuple(shlex.split(command)), world_size=8)


def bound(space: SearchSpace, command: str) -> SearchSpace:
    workload, config = read_config(launch(command), space)
    return space.bind(workload=workload, current=config)


@pytest.mark.parametrize("trainer", COMMANDS)
class TestDocumentedCommands:
    def test_values_of_a_command_are_read(self, trainer: str) -> None:
        case = COMMANDS[trainer]
        space = space_of(trainer, *case["parameters"])
        workload, config = read_config(launch(case["command"]), space)
        assert workload == {"program": "train.py", "world_size": 8, **case["facts"]}
        assert config == case["config"]
        assert config in bound(space, case["command"])

    def test_every_config_keeps_the_global_batch_and_is_read_back(self, trainer: str) -> None:
        space, command = space_of(trainer, *COMMANDS[trainer]["parameters"]), COMMANDS[trainer]["command"]
        before, legal = launch(command), bound(space, command)
        workload, current = read_config(before, space)
        assert write_config(before, space, current) == before
        batch = computed_global_batch_size(workload=workload, current=current)
        assert legal.size() >= 8
        for config in legal.configs():
            after = write_config(before, space, config)
            assert read_config(after, space) == (workload, config)
            assert computed_global_batch_size(workload=workload, current=config) == batch
            assert len(after.script_args) < len(before.script_args) + 8


@pytest.mark.parametrize(
    ("trainer", "command", "change", "expected"),
    [
        (
            "megatron-lm",
            MEGATRON,
            {"tp_degree": 1, "sequence_parallel": False, "activation_checkpointing": "full"},
            MEGATRON.replace("size 2 --pipe", "size 1 --pipe").replace(" --sequence-parallel", "")
            + " --recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
        ),
        (
            "torchtitan",
            TORCHTITAN,
            {"tp_degree": 4, "compile": False},
            TORCHTITAN.replace("tensor_parallel_degree 2", "tensor_parallel_degree 4").replace(
                "--compile.enable", "--compile.no-enable"
            ),
        ),
        (
            "hf",
            HUGGING_FACE,
            {"micro_batch_size": 8, "gradient_accumulation_steps": 4, "sharding_strategy": "SHARD_GRAD_OP"},
            HUGGING_FACE.replace("size 4", "size 8").replace("steps 8", "steps 4").replace("full_sh", "shard_grad_op"),
        ),
        ("deepspeed", DEEPSPEED, {"activation_checkpointing": "none"}, DEEPSPEED.replace(" --gradient_check", "!")),
        ("nanogpt", NANOGPT, {"compile": True}, NANOGPT.replace("False", "True")),
    ],
    ids=COMMANDS,
)
def test_values_are_written_to_a_command(trainer: str, command: str, change: dict[str, object], expected: str) -> None:
    expected = expected.replace("!pointing", "").replace("shard_grad_opard", "shard_grad_op")
    space = space_of(trainer, *COMMANDS[trainer]["parameters"])
    after = write_config(launch(command), space, change)
    assert after.script_args == tuple(shlex.split(expected))


class TestOneLineIsEnough:
    def test_megatron(self) -> None:
        space = space_of("megatron-lm", 'tp_degree = "auto"')
        assert [item.name for item in space.parameters] == ["tp_degree", "gradient_accumulation_steps"]
        assert {config["tp_degree"] for config in bound(space, MEGATRON).configs()} == {1, 2, 4}
        few_heads = MEGATRON.replace("heads 16", "heads 2")
        assert {config["tp_degree"] for config in bound(space, few_heads).configs()} == {1, 2}

    def test_other_parameters_need_no_batch(self) -> None:
        space = space_of("megatron-lm", 'overlap_grad_reduce = "auto"')
        assert bound(space, "--use-mcore-models").size() == 2
        assert read_config(launch("--num-layers 2"), space)[0]["n_layers"] == 2

    def test_implied_accumulation_needs_a_stated_batch(self) -> None:
        command = MEGATRON.replace("--global-batch-size 128", "")
        with pytest.raises(LaunchError, match="flag --global-batch-size of workload fact global_batch_size is not in"):
            read_config(launch(command), space_of("megatron-lm", 'tp_degree = "auto"'))

    def test_a_checkpoint_may_bring_other_degrees(self) -> None:
        command = MEGATRON.replace("--tensor-model-parallel-size 2", "--use-checkpoint-args")
        with pytest.raises(LaunchError, match="and --use-checkpoint-args may set it: add the flag"):
            read_config(launch(command), space_of("megatron-lm", 'tp_degree = "auto"'))

    def test_torchtitan_says_what_its_config_may_hide(self) -> None:
        command = TORCHTITAN.replace("--parallelism.context_parallel_degree 1", "")
        space = space_of("torchtitan", 'tp_degree = "auto"')
        with pytest.raises(LaunchError, match="context_parallel_degree of workload fact cp_degree is not in the comm"):
            read_config(launch(command), space)
        stated = space_of("torchtitan", 'tp_degree = "auto"', rest="[workload]\ncp_degree = 1")
        assert read_config(launch(command), stated)[0]["cp_degree"] == 1

    def test_nanogpt_counts_accumulation_over_all_ranks(self) -> None:
        space = space_of("nanogpt", 'gradient_accumulation_steps = "auto"\nmicro_batch_size = "auto"')
        by_batch = {config["micro_batch_size"]: config for config in bound(space, NANOGPT).configs()}
        # 480 samples a step: what each of 8 ranks does must be whole
        assert {size: by_batch[size]["gradient_accumulation_steps"] for size in by_batch} == {
            1: 60,
            2: 30,
            4: 15,
            12: 5,
        }
        assert by_batch[4]["job_accumulation_steps"] == 120

    def test_nanogpt_defaults_where_no_file_has_others(self) -> None:
        space = space_of("nanogpt", 'micro_batch_size = "auto"')
        assert read_config(launch("--eval_iters=3"), space)[1] == {
            "micro_batch_size": 12,
            "job_accumulation_steps": 40,
            "gradient_accumulation_steps": 5,
        }
        with pytest.raises(LaunchError, match=r"and config/train.py may set it"):
            read_config(launch("config/train.py"), space)

    def test_hugging_face_flags_with_dashes(self) -> None:
        space = space_of("hf", 'micro_batch_size = "auto"')
        after = write_config(launch("--per-device-train-batch-size=4"), space, {"micro_batch_size": 2})
        assert after.script_args == ("--per-device-train-batch-size=2",)


class TestRecomputationAndOverlap:
    NAMES = ("activation_checkpointing", "selective_recompute", "cp_method", "tp_overlap")
    SELECTIVE = MEGATRON + " --context-parallel-size 2 --recompute-granularity selective"

    def test_words_of_a_list_are_one_value(self) -> None:
        space = space_of("megatron-lm", *(f'{name} = "auto"' for name in self.NAMES))
        before = launch(f"{self.SELECTIVE} --recompute-modules core_attn moe")
        _, own = read_config(before, space)
        assert [own[name] for name in self.NAMES] == ["selective", "core_attn moe", "p2p", False]
        change = {"selective_recompute": "core_attn mlp", "cp_method": "a2a", "tp_overlap": True}
        after = write_config(before, space, {**own, **change})
        words = "--recompute-modules core_attn mlp --cp-comm-type a2a --tp-comm-overlap"
        assert after.script_args == (*shlex.split(self.SELECTIVE), *words.split())
        assert write_config(after, space, own) == before
        added = write_config(launch(self.SELECTIVE), space, {**own, **change})
        assert added.script_args == after.script_args

    def test_a_value_per_layer_is_a_word_each(self) -> None:
        body = '[parameters.cp_method]\nchoices = ["p2p", "a2a"]\nper_layer = 3'
        space = space_of("megatron-lm", rest=body)
        for typed in ("--cp-comm-type p2p", "--cp-comm-type p2p a2a a2a", ""):
            before = launch(f"{self.SELECTIVE} {typed}")
            written = write_config(before, space, {"cp_method": ("a2a", "p2p", "p2p")})
            assert written.script_args == (*shlex.split(self.SELECTIVE), "--cp-comm-type", "a2a", "p2p", "p2p")
            assert read_config(written, space)[1]["cp_method"] == ("a2a", "p2p", "p2p")

    def test_modules_of_the_release_may_be_listed(self) -> None:
        space = space_of("megatron-lm", 'selective_recompute = ["moe_act", "core_attn layernorm"]')
        assert space.parameters[0].choices == ("moe_act", "core_attn layernorm")
        with pytest.raises(SpaceError, match=r"selective_recompute.*'core_attn attention'"):
            space_of("megatron-lm", 'selective_recompute = ["core_attn attention"]')

    @pytest.mark.parametrize(
        ("groups", "legal"), [("", True), (" --group-query-attention --num-query-groups 2", False)]
    )
    def test_an_exchange_of_heads_needs_heads_on_each_rank(self, groups: str, legal: bool) -> None:
        command = MEGATRON + " --context-parallel-size 2" + groups
        space = space_of("megatron-lm", 'cp_method = "auto"')
        known = with_rule_facts(launch(command), space)
        workload, current = read_config(launch(command), space)
        methods = {config["cp_method"] for config in known.bind(workload=workload, current=current).configs()}
        assert methods == {"p2p", "all_gather", *(["a2a"] if legal else [])}

    @pytest.mark.parametrize("section", ["parallelism", "compile"])
    def test_asynchronous_tensor_parallelism_of_either_release(self, section: str) -> None:
        flag = f"--{section}.enable_async_tensor_parallel"
        space = space_of("torchtitan", 'tp_overlap = "auto"')
        before = launch(f"{TORCHTITAN} {flag}")
        assert read_config(before, space)[1]["tp_overlap"] is True
        after = write_config(before, space, {"tp_overlap": False})
        assert after.script_args[-1] == f"--{section}.no-enable_async_tensor_parallel"
        assert write_config(after, space, {"tp_overlap": True}) == before


class TestBesideTables:
    def test_a_table_fills_in_what_it_does_not_say(self) -> None:
        space = space_of("megatron-lm", rest="[parameters.tp_degree]\nchoices = [1, 2]\n[parameters.micro_batch_size]")
        assert [item.choices for item in space.parameters][:2] == [(1, 2), (1, 2, 4, 8, 16, 32)]
        assert space.parameters[0].default == 1
        assert space.parameters[0].binding is not None

    def test_a_users_binding_keeps_its_own_default(self) -> None:
        body = '[parameters.tp_degree]\nchoices = [1, 2]\nflag = "--tp"\n[parameters.m]\nchoices = [1]\n'
        space = space_of("megatron-lm", rest=f'{body}flag = "--micro-batch-size"\n[workload]\nmicro_batch_size = 2')
        assert space.parameters[0].default is None
        assert read_config(launch("--tp 2 --micro-batch-size 1 " + MEGATRON[36:90] + " --global-batch-size 8"), space)

    def test_a_stated_default_is_believed(self) -> None:
        space = space_of("torchtitan", rest="[parameters.compile]\nchoices = [false, true]\ndefault = true")
        assert read_config(launch("--module llama3"), space)[1]["compile"] is True

    def test_a_stated_default_stands_for_flag_and_file(self) -> None:
        body = "[parameters.compile]\nchoices = [false, true]\n"
        stated, known = (space_of("torchtitan", rest=body + more).parameters[0] for more in ("default = true", ""))
        assert stated.binding is not None
        assert known.binding is not None
        assert (stated.default, stated.binding.file_default, stated.binding.unless) == (True, True, ())
        assert (known.default, known.binding.file_default, known.binding.unless) == (None, None, ("*",))
        layers = space_of("torchtitan", rest=body + "per_layer = 2\ndefault = [true, false]").parameters[0]
        assert layers.binding is not None
        assert (layers.default, layers.binding.file_default) == ((True, False), None)

    def test_a_user_may_declare_accumulation(self) -> None:
        body = "[parameters.micro_batch_size]\nchoices = [1, 2]\n[parameters.gradient_accumulation_steps]\nchoices=[4]"
        assert len(space_of("hf", rest=body).parameters) == 2

    def test_a_user_may_declare_a_condition(self) -> None:
        body = '[parameters.compile]\nchoices = [false, true]\nwhen = "micro_batch_size > 2"'
        space = space_of("hf", rest=body)
        assert bound(space, "--per_device_train_batch_size 4").size() == 2
        assert bound(space, "--per_device_train_batch_size 2").size() == 1


@pytest.mark.parametrize("trainer", TRAINERS.values(), ids=TRAINERS)
class TestEveryTable:
    def test_is_sound(self, trainer: Trainer) -> None:
        for name, flag in trainer.flags.items():
            assert is_name(name)
            assert flag.flag or flag.file
            assert all(re.fullmatch(r"--[a-z][a-z0-9_.-]*=?", typed) for typed in (flag.flag, flag.file) if typed)
            assert bool(flag.file) == bool(re.fullmatch(r"[a-z0-9_]+(\.[a-z0-9_]+)*", flag.key))
            assert {word for word, _ in flag.file_words} >= set(flag.choices) or not flag.file_words
            assert len(set(flag.choices)) == len(flag.choices)
            known = STANDARD_WORDS.get(name)
            if known is not None:
                assert set(flag.choices) <= known
            if flag.choices and flag.default is not None and name != "micro_batch_size":
                assert flag.default in flag.choices
            if flag.when:
                assert parse_expression(flag.when, where="x").names <= trainer.flags.keys()
        for rule in trainer.constraints:
            assert parse_expression(rule, where="x").names <= {*trainer.flags, "dp_degree"}
        for sentence, rule in trainer.rules.values():
            assert sentence[:1] != " "
            assert parse_expression(rule, where="x").names <= {*trainer.flags, *_KNOWN_OTHERWISE}

    def test_names_the_release_that_its_rules_follow(self, trainer: Trainer) -> None:
        assert trainer.release.version
        assert all(": " in check for check in trainer.release.checks)

    def test_no_flag_means_two_things(self, trainer: Trainer) -> None:
        flags = [flag.flag or (flag.file, flag.key) for flag in trainer.flags.values()]
        assert len(set(flags)) == len(flags)

    def test_holds_the_batch(self, trainer: Trainer) -> None:
        if trainer.name == "accelerate":  # the script's own, of which accelerate knows nothing
            return
        assert "micro_batch_size" in trainer.flags
        wanted = "global_batch_size" if trainer.accumulation == "implied" else "gradient_accumulation_steps"
        assert wanted in trainer.flags
        assert wanted in STANDARD_PARAMETERS

    def test_every_proposal_stands_alone(self, trainer: Trainer) -> None:
        for name, flag in trainer.flags.items():
            if flag.choices:
                space = space_of(trainer.name, f'{name} = "auto"')
                assert space.parameters[0].choices == flag.choices
