"""Comment of a starter space file on the rules that its configs must meet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.cli.starter.toml_text import one_line
from torchx_cubicml.errors import CubicMLError
from torchx_cubicml.launch import read_config, with_rule_facts
from torchx_cubicml.space.toml import parse_space

if TYPE_CHECKING:
    from torchx_cubicml.launch import Launch


def rules_comment(text: str, launch: Launch) -> str:
    """Return the comment on the rules that exclude configs of a command's space file; empty if there are none.

    Args:
        text: the space file.
        launch: the command.
    """
    try:
        space = parse_space(text, where="the starter")
        workload, config = read_config(launch, space)
        bound = with_rule_facts(launch, space).bind(workload=workload, current=config)
    except CubicMLError:
        return ""  # a comment only: the file is written without it
    effective = {effect.text for effect in bound.effects()}
    lines = [f"# {rule.text}" for rule in bound.in_force.rules if rule.text in effective]
    lines += [f"# {rule.text}: set aside, {why}" for rule, why in bound.in_force.set_aside]
    head = '# Every proposed config also meets these rules; ignore_rules = ["NAME"] before all tables ignores one:'
    return "\n".join(["", head, *map(one_line, lines), ""]) if lines else ""
