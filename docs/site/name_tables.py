"""Tables of names that the package knows: flags, trainers and rules of legality."""

from __future__ import annotations

from typing import TYPE_CHECKING

from markdown_table import code, table

from torchx_cubicml.facts.hook_registry import hook_names, hook_spec
from torchx_cubicml.records.shareable_facts import KEPT_NAMES, LEFT_OUT
from torchx_cubicml.records.standard_names import CHANGES_TRAINING, FLAG_ALIASES, STANDARD_PARAMETERS, WORKLOAD_SIZES
from torchx_cubicml.space.legality import JOB_RULES
from torchx_cubicml.space.trainers import TRAINERS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torchx_cubicml.records.values import Scalar
    from torchx_cubicml.space.trainers import Trainer, TrainerFlag

_RULE = ["rule", "a config is legal if", "as an expression"]


def flag_table() -> str:
    """Return the flags that are known in any script, by standard name."""
    found: dict[str, list[str]] = {}
    for flag, name in FLAG_ALIASES.items():
        found.setdefault(name, []).append(code(flag))
    rows = [
        [code(name), ", ".join(flags), "yes" if name in CHANGES_TRAINING else "no"] for name, flags in found.items()
    ]
    return table(["standard name", "flags, without dashes and in either spelling", "changes what is trained"], rows)


def record_names() -> str:
    """Return the standard names in records, and which of them an anonymous export keeps."""
    rows = []
    for name in sorted(KEPT_NAMES | LEFT_OUT):
        kind = "parameter" if name in STANDARD_PARAMETERS else "size" if name in WORKLOAD_SIZES else "fact"
        rows.append([code(name), kind, "left out" if name in LEFT_OUT else "kept"])
    return table(["name", "kind", "in an anonymous export"], rows)


def hook_table() -> str:
    """Return the hooks, what each sets, and its values in groups that do not mix."""
    rows = []
    for spec in map(hook_spec, hook_names()):
        groups = [
            ", ".join(code(f"{value}".lower() if isinstance(value, bool) else value) for value in group)
            for group in spec.values
        ]
        rows.append([code(spec.name), spec.sets, "; or ".join(groups) or spec.takes])
    return table(["hook", "what it sets", "values, the default first"], rows)


def job_rules_table() -> str:
    """Return the rules of legality that hold for every job."""
    return table(_RULE, ([code(rule.name), rule.sentence, code(rule.expression.source)] for rule in JOB_RULES))


def trainer_names() -> str:
    """Return one section per trainer: each standard name with its flag or key, its values and its default."""
    return "\n\n".join(_names_of(trainer) for trainer in TRAINERS.values())


def trainer_rules() -> str:
    """Return one section per trainer: its rules of legality, and the release whose checks they follow."""
    return "\n\n".join(_rules_of(trainer) for trainer in TRAINERS.values())


def _names_of(trainer: Trainer) -> str:
    rows = [[code(name), _place(flag), _values(flag.choices), _default(flag)] for name, flag in trainer.flags.items()]
    heads = ["parameter or fact", "flag or key", '`"auto"` means', "default"]
    return f"### {code(trainer.name)}\n\n{table(heads, rows)}"


def _place(flag: TrainerFlag) -> str:
    flags = [code(name) for name in (flag.flag, *flag.aliases) if name]
    key = [f"{code(flag.key)} of {code(flag.file)}"] if flag.key else []
    return " or ".join([*flags, *key])


def _default(flag: TrainerFlag) -> str:
    return _values(value for value in [flag.default if flag.flag else flag.file_default] if value is not None)


def _values(values: Iterable[Scalar]) -> str:
    return ", ".join(code(str(value).lower() if isinstance(value, bool) else str(value)) for value in values)


def _rules_of(trainer: Trainer) -> str:
    rules = [[code(name), sentence, code(source)] for name, (sentence, source) in trainer.rules.items()]
    always = [["", "in any case", code(source)] for source in trainer.constraints]
    checks = table([f"checks of release {trainer.release.version}"], ([code(each)] for each in trainer.release.checks))
    exempt = ", ".join(map(code, trainer.exempt))
    left_out = f"\n\nNot true of this trainer: {exempt}." if exempt else ""
    rows = [*rules, *always]
    shown = f"\n\n{table(_RULE, rows)}" if rows else ""
    return f"### Rules of {code(trainer.name)}\n\n{checks}{left_out}{shown}"
