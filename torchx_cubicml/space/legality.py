"""Legality rules: implied constraints, which a job must meet to start, beside the constraints that the user writes.

A rule counts only where all names that it reads are known: an unknown fact excludes nothing. A config that ran, or that
the user's own command has, is evidence: a rule that it breaks is wrong for this job, and is set aside.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from torchx_cubicml.errors import SpaceError
from torchx_cubicml.space.expression import parse_expression

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torchx_cubicml.records.values import Config, Value
    from torchx_cubicml.space.expression import Expression
    from torchx_cubicml.space.legal_configs import LegalConfigs

EVERY_JOB = "every job"
MOST_COUNTED = 10**12  # combinations

_OF_EVERY_JOB = {
    # Each rank of a tensor-parallel group computes whole heads.
    "heads_by_tp": ("tp_degree divides the attention heads", "n_heads % tp_degree == 0"),
    # Expert-parallel groups of equal size are ranks of one pipeline stage.
    "ep_in_world": ("ep_degree divides the world size", "world_size % ep_degree == 0"),
    "ep_in_stage": ("ep_degree divides the ranks of a pipeline stage", "world_size % (ep_degree * pp_degree) == 0"),
    "experts_by_ep": (
        "each rank has whole experts, or each expert equally many ranks",
        "n_experts < 1 or n_experts % ep_degree == 0 or ep_degree % n_experts == 0",
    ),
    # By definition dp_degree = dp_replicate_degree * dp_shard_degree; -1 and 0 stand for the remaining ranks.
    "dp_replicate_in_dp": ("dp_replicate_degree divides dp_degree", "dp_degree % dp_replicate_degree == 0"),
    "dp_shard_in_world": (
        "dp_shard_degree divides the world size",
        "dp_shard_degree < 1 or world_size % dp_shard_degree == 0",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LegalityRule:
    """An implied constraint on a config.

    Args:
        name: its name, as messages and ``ignore_rules`` of a space file have it.
        sentence: the condition in words.
        expression: condition that a config must meet.
        scope: the jobs that it is true of: every job, or those of a trainer at a release.
    """

    name: str
    sentence: str
    expression: Expression
    scope: str

    @classmethod
    @lru_cache(maxsize=1024)  # the tables in the sources have fewer, and a launch asks twice for its trainer's
    def of(cls, name: str, stated: tuple[str, str], *, scope: str) -> LegalityRule:
        """Return the rule that is stated in words and as an expression.

        Raises:
            SpaceError: the second text is not an expression.
        """
        sentence, source = stated
        expression = parse_expression(source, where=f"rule {name} ({scope})")
        return cls(name=name, sentence=sentence, expression=expression, scope=scope)

    @property
    def text(self) -> str:
        """Name, condition in words and scope, for messages."""
        return f"{self.name}: {self.sentence} ({self.scope})"


JOB_RULES = tuple(LegalityRule.of(name, stated, scope=EVERY_JOB) for name, stated in _OF_EVERY_JOB.items())
"""Rules that hold for every job whose file has the standard names; a trainer's rule of the same name replaces one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RulesInForce:
    """The implied rules that count for one workload.

    Args:
        rules: those that exclude configs.
        set_aside: those that a config contradicts, each with the sentence that says so.
    """

    rules: tuple[LegalityRule, ...] = ()
    set_aside: tuple[tuple[LegalityRule, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleEffect:
    """Number of combinations that one rule alone leaves.

    Args:
        text: the rule.
        left: combinations that meet it.
        total: combinations in all; an idle parameter has one value.
    """

    text: str
    left: int
    total: int


def rules_in_force(
    rules: Iterable[LegalityRule], legal: LegalConfigs, *, own: Config, ran: Sequence[Config] = ()
) -> RulesInForce:
    """Return the rules that count: their names are known, they depend on the config, and no config contradicts them.

    Args:
        rules: the implied rules.
        legal: the legal configs of the bound space without implied rules.
        own: the user's own config; may be empty.
        ran: configs that were launched and measured.
    """
    counting = [rule for rule in rules if legal.depends_on_choice(rule.expression)]
    if not counting:
        return RulesInForce()
    owners = [("your own config breaks it", own), *(("a launch that ran breaks it", config) for config in ran)]
    evidence = [(sentence, legal.completed(config)) for sentence, config in owners if config]
    in_force, set_aside = [], []
    for rule in counting:
        sentence = next((sentence for sentence, values in evidence if _breaks(values, rule)), "")
        if sentence:
            set_aside.append((rule, sentence))
        else:
            in_force.append(rule)
    return RulesInForce(rules=tuple(in_force), set_aside=tuple(set_aside))


def _breaks(values: Mapping[str, Value], rule: LegalityRule) -> bool:
    if not rule.expression.names <= values.keys():
        return False
    try:
        return not rule.expression.holds(values)
    except SpaceError:
        return False  # a value of another kind is no evidence


def rule_effects(legal: LegalConfigs, rules: Iterable[LegalityRule]) -> list[RuleEffect]:
    """Return the effect of each derivation, constraint and implied rule that excludes a combination.

    Args:
        legal: the legal configs of the bound space.
        rules: the implied rules among its constraints.
    """
    implied = {id(rule.expression): rule for rule in rules}
    total, counts = legal.left_by_each_rule(limit=MOST_COUNTED)
    return [
        RuleEffect(text=implied.get(id(rule.expression), rule).text, left=left, total=total) for rule, left in counts
    ]
