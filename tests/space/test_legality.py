"""Implied rules: what they exclude, against the same rules in plain Python; and when they do not count."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchx_cubicml.errors import SpaceError
from torchx_cubicml.launch import Launch, read_config, with_rule_facts
from torchx_cubicml.space.legality import JOB_RULES, LegalityRule
from torchx_cubicml.space.toml import parse_space

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torchx_cubicml.space import SearchSpace

DEGREES = st.lists(st.sampled_from([2, 3, 4, 6, 8]), max_size=2, unique=True).map(lambda values: [1, *values])
WORLDS = st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16, 24])


def space_of(parameters: Mapping[str, list[int]], facts: Mapping[str, int], *, top: str = "") -> SearchSpace:
    tables = [f"[parameters.{name}]\nchoices = {values}\nflag = '--{name}'" for name, values in parameters.items()]
    return parse_space("\n".join([top, "[workload]", *_stated(facts), *tables]), where="s.toml")


def _stated(facts: Mapping[str, int]) -> Iterable[str]:
    return (f"{name} = {value}" for name, value in facts.items())


def found(space: SearchSpace, names: Iterable[str]) -> set[tuple[object, ...]]:
    return {tuple(config[name] for name in names) for config in space.configs()}


class TestEveryJob:
    @given(
        tp=DEGREES,
        pp=DEGREES,
        ep=DEGREES,
        replicate=DEGREES,
        world=WORLDS,
        heads=st.sampled_from([4, 6, 8, 12, 16]),
        experts=st.sampled_from([2, 3, 4, 6, 8]),
    )
    def test_exactly_what_can_start_is_legal(
        self, tp: list[int], pp: list[int], ep: list[int], replicate: list[int], world: int, heads: int, experts: int
    ) -> None:
        names = {"tp_degree": tp, "pp_degree": pp, "ep_degree": ep, "dp_replicate_degree": replicate}
        space = space_of(names, {"n_heads": heads, "n_experts": experts})
        own = dict.fromkeys(names, 1)
        bound = space.bind(workload={"world_size": world, "n_heads": heads, "n_experts": experts}, current=own)

        def starts(tp: int, pp: int, ep: int, replicate: int) -> bool:
            ranks_of_stage, lacking = divmod(world, pp)
            data_parallel, lacking_too = divmod(world, tp * pp)
            return (
                not lacking
                and not lacking_too
                and heads % tp == 0
                and ranks_of_stage % ep == 0
                and (experts % ep == 0 or ep % experts == 0)
                and data_parallel % replicate == 0
            )

        assert found(bound, names) == {combination for combination in product(*names.values()) if starts(*combination)}

    def test_unknown_facts_exclude_nothing(self) -> None:
        space = space_of({"tp_degree": [1, 2, 3]}, {})
        assert space.bind(workload={"world_size": 6}, current={"tp_degree": 1}).size() == 3
        assert space.bind(workload={"world_size": 6, "n_heads": 4}, current={"tp_degree": 1}).size() == 2

    def test_the_own_config_sets_a_rule_aside(self) -> None:
        space = space_of({"tp_degree": [1, 2, 3]}, {"n_heads": 4})
        facts = {"world_size": 6, "n_heads": 4}
        bound = space.bind(workload=facts, current={"tp_degree": 3})
        assert {config["tp_degree"] for config in bound.configs()} == {1, 2, 3}
        ((rule, why),) = bound.in_force.set_aside
        assert (rule.name, why) == ("heads_by_tp", "your own config breaks it")
        unknown = space.bind(workload=facts, current={})
        assert unknown.size() == 2

    def test_a_launch_that_ran_sets_a_rule_aside(self) -> None:
        space = space_of({"tp_degree": [1, 2, 3]}, {"n_heads": 4})
        facts = {"world_size": 6, "n_heads": 4}
        bound = space.bind(workload=facts, current={"tp_degree": 1}, ran=[{"tp_degree": 2}, {"tp_degree": 3}])
        assert bound.size() == 3
        assert [why for _, why in bound.in_force.set_aside] == ["a launch that ran breaks it"]
        again = bound.bind(workload=facts, current={"tp_degree": 1})
        assert (again.size(), again.in_force.set_aside) == (2, ())

    def test_a_rule_can_be_ignored(self) -> None:
        space = space_of({"tp_degree": [1, 2, 3]}, {"n_heads": 4}, top='ignore_rules = ["heads_by_tp"]')
        assert space.bind(workload={"world_size": 6, "n_heads": 4}, current={"tp_degree": 1}).size() == 3
        assert space_of({"tp_degree": [1]}, {}, top="ignore_rules = ['ep_in_world']").rules == tuple(
            rule for rule in JOB_RULES if rule.name != "ep_in_world"
        )
        with pytest.raises(
            SpaceError, match=r"s.toml: ignore_rules: unknown rule 'heads'; did you mean 'heads_by_tp'\?"
        ):
            space_of({"tp_degree": [1]}, {}, top='ignore_rules = ["heads"]')

    def test_a_space_without_rules_has_all_configs(self) -> None:
        space = space_of({"tp_degree": [1, 2, 3]}, {"n_heads": 4})
        facts = {"world_size": 6, "n_heads": 4}
        bound = space.bind(workload=facts, current={"tp_degree": 1})
        assert bound.without_rules().bind(workload=facts, current={"tp_degree": 1}).size() == 3

    def test_a_rule_that_excludes_everything_is_named(self) -> None:
        space = space_of({"tp_degree": [3]}, {"n_heads": 4})
        with pytest.raises(SpaceError, match=r"all break rule heads_by_tp \(every job\): 'n_heads % tp_degree == 0'"):
            space.bind(workload={"world_size": 6, "n_heads": 4}, current={})

    def test_the_effect_of_each_rule(self) -> None:
        space = space_of({"tp_degree": [1, 2, 3, 4, 8], "micro_batch_size": [1, 2]}, {"n_heads": 4})
        bound = space.bind(workload={"world_size": 8, "n_heads": 4}, current={"tp_degree": 1, "micro_batch_size": 1})
        assert [(each.text, each.left, each.total) for each in bound.effects()] == [
            ("dp_degree = world_size / (tp_degree)", 8, 10),
            ("heads_by_tp: tp_degree divides the attention heads (every job)", 6, 10),
        ]

    def test_a_rule_is_an_expression(self) -> None:
        with pytest.raises(SpaceError, match=r"rule x \(y\): 'a b': not an expression"):
            LegalityRule.of("x", ("a is b", "a b"), scope="y")


class TestMegatron:
    @settings(max_examples=20)  # each builds the space of five parameters under all rules
    @given(
        tp=DEGREES,
        pp=DEGREES,
        cp=DEGREES,
        ep=DEGREES,
        world=WORLDS,
        heads=st.sampled_from([4, 6, 8, 12, 16]),
        kv_heads=st.sampled_from([0, 1, 2, 4]),
        layers=st.sampled_from([4, 6, 8, 12, 15]),
        experts=st.sampled_from([0, 2, 4, 6]),
        seq_len=st.sampled_from([1000, 1024, 1536]),
        fp8=st.booleans(),
    )
    def test_exactly_what_can_start_is_legal(
        self,
        *,
        tp: list[int],
        pp: list[int],
        cp: list[int],
        ep: list[int],
        world: int,
        heads: int,
        kv_heads: int,
        layers: int,
        experts: int,
        seq_len: int,
        fp8: bool,
    ) -> None:
        names = {"tp_degree": tp, "pp_degree": pp, "cp_degree": cp, "ep_degree": ep}
        lines = [f"{name} = {values}" for name, values in names.items()]
        text = "\n".join(['trainer = "megatron-lm"', "[parameters]", *lines, "sequence_parallel = [false, true]"])
        command = (
            f"--num-layers {layers} --num-attention-heads {heads} --hidden-size {heads * 16} --seq-length {seq_len} "
            f"--micro-batch-size 1 --global-batch-size {world} --disable-bias-linear"
            + (f" --group-query-attention --num-query-groups {kv_heads}" if kv_heads else "")
            + (f" --num-experts {experts}" if experts else "")
            + (" --fp8-format hybrid" if fp8 else "")
        )
        space = parse_space(text, where="s.toml")
        launch = Launch(program="pretrain_gpt.py", script_args=tuple(command.split()), world_size=world)
        workload, own = read_config(launch, space)
        bound = with_rule_facts(launch, space).bind(workload=workload, current=own)
        assert not bound.in_force.set_aside

        def starts(tp: int, pp: int, cp: int, ep: int, sequence_parallel: bool) -> bool:
            if sequence_parallel and tp == 1:
                return False  # idle: off
            tokens = seq_len / cp / (tp if sequence_parallel else 1)
            return all(
                (
                    world % (tp * pp * cp) == 0,
                    world % (tp * pp * ep) == 0,
                    heads % tp == 0,
                    not kv_heads or kv_heads % tp == 0 or tp % kv_heads == 0,
                    layers % pp == 0,
                    cp == 1 or seq_len % (2 * cp) == 0,
                    tokens == int(tokens),
                    ep == 1 or (experts > 0 and experts % ep == 0),
                    not experts or tp == 1 or sequence_parallel,
                    not fp8 or (tokens % 8 == 0 and heads * 16 % (16 * tp) == 0),
                )
            )

        wanted = {each for each in product(*names.values(), (False, True)) if starts(*each)}
        assert found(bound, [*names, "sequence_parallel"]) == wanted
