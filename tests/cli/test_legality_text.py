"""What users read on the rules that exclude configs."""

from __future__ import annotations

from torchx_cubicml.cli.legality_text import legality_json, legality_lines
from torchx_cubicml.cli.starter.from_trainer import rules_comment
from torchx_cubicml.launch import Launch
from torchx_cubicml.space.toml import parse_space

TEXT = "[workload]\nn_heads = { flag = '--n_heads' }\n[parameters.tp_degree]\nchoices = [1, 2, 3, 6]\nflag = '--tp'\n"
SPACE = parse_space(TEXT, where="s.toml")
FACTS = {"world_size": 6, "n_heads": 4}
HEADS = "heads_by_tp: tp_degree divides the attention heads (every job)"


def test_each_rule_with_what_it_leaves() -> None:
    bound = SPACE.bind(workload=FACTS, current={"tp_degree": 1})
    assert legality_lines(bound) == [
        "Legal configs: 2 of 4 combinations. Combinations that each rule leaves:",
        f"  2 by {HEADS}",
    ]
    assert legality_json(bound) == {
        "legal": 2,
        "rules": [{"rule": HEADS, "left": 2, "of": 4}],
        "set_aside": [],
    }


def test_a_rule_that_is_set_aside() -> None:
    bound = SPACE.bind(workload=FACTS, current={"tp_degree": 3})
    assert legality_lines(bound) == [f"  Rule {HEADS} is set aside for this job: your own config breaks it."]
    assert legality_json(bound)["set_aside"] == [{"rule": HEADS, "why": "your own config breaks it"}]


def test_nothing_is_said_where_nothing_is_excluded() -> None:
    assert legality_lines(SPACE.bind(workload={"world_size": 6}, current={"tp_degree": 1})) == []


def test_a_starter_file_lists_its_rules() -> None:
    def comment(tp: int, heads: int) -> list[str]:
        args = ("--tp", str(tp), "--n_heads", str(heads))
        return rules_comment(TEXT, Launch(program="t.py", script_args=args, world_size=6)).splitlines()[2:]

    assert comment(1, 4) == [f"# {HEADS}"]
    assert comment(3, 4) == [f"# {HEADS}: set aside, your own config breaks it"]
    assert comment(1, 6) == []
    assert rules_comment("[parameters", Launch(program="t.py")) == ""
