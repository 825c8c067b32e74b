"""Reader of space files, with the checks of the rules that tie their tables together.

- Every parameter, and every workload fact that is no constant, has one place in the command; no two share one.
- Expressions read parameters, workload facts and the names in ``PREDEFINED_NAMES``, and nothing else.
- A name is one that an expression can read.
- ``log`` contains the pattern of throughput in the program's output.
- ``ignore_rules`` switches off implied rules.
- ``trainer`` names a trainer's table, with the bindings and the legal values of known parameters.
"""

from __future__ import annotations

import re
from dataclasses import replace
from hashlib import blake2b
from itertools import chain
from typing import TYPE_CHECKING

from torchx_cubicml.errors import LaunchError, SpaceError
from torchx_cubicml.records.argument_words import with_underscores
from torchx_cubicml.records.measurement import MEAN, STATISTICS
from torchx_cubicml.records.objective_units import OBJECTIVES
from torchx_cubicml.space import BindingKind, SearchSpace
from torchx_cubicml.space.constraints import PREDEFINED_NAMES, Conditional, in_dependency_order
from torchx_cubicml.space.expression import is_name, parse_expression
from torchx_cubicml.space.toml.bindings import places_of, read_tune, with_derived_world_size
from torchx_cubicml.space.toml.job import check_job, read_job
from torchx_cubicml.space.toml.key_meanings import ROOT, TUNE
from torchx_cubicml.space.toml.mesh_parameters import is_mesh, read_mesh
from torchx_cubicml.space.toml.objectives import check_objectives, read_objectives
from torchx_cubicml.space.toml.parameters import read_fact, read_parameter
from torchx_cubicml.space.toml.prices import check_prices, read_prices
from torchx_cubicml.space.toml.roles import standard_names_of
from torchx_cubicml.space.toml.schema import TomlTable, choose_from
from torchx_cubicml.space.toml.sections import read_log, read_rewrite
from torchx_cubicml.space.toml.trainer import implied_rules, is_auto_accumulation, read_trainer, with_trainer
from torchx_cubicml.user_files import parse_toml, read_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from torchx_cubicml.space import RewriteRules
    from torchx_cubicml.space.constraints import Derivation
    from torchx_cubicml.space.expression import Expression
    from torchx_cubicml.space.legality import LegalityRule
    from torchx_cubicml.space.parameter import Parameter
    from torchx_cubicml.space.trainers import Trainer

MAX_BYTES = 256 * 1024  # of a file
MAX_ENTRIES = 1000  # parameters, facts or constraints
MAX_NAME = 64  # characters

ROOT_KEYS = tuple(ROOT)


def load_space(path: str | Path) -> SearchSpace:
    """Return the space that a file describes.

    Raises:
        SpaceError: the file cannot be read or breaks a rule; the message names key, value, rule and legal values.
    """
    try:
        text = read_text(path, most=MAX_BYTES)
    except LaunchError as error:
        raise SpaceError(f"space file {error}") from None
    return replace(parse_space(text, where=str(path)), digest=space_digest(text))


def space_digest(text: str) -> str:
    """Return the digest of a space file's text, 16 hexadecimal digits, as records hold it.

    >>> is_digest(space_digest("[parameters]"))
    True
    """
    return blake2b(text.encode(), digest_size=8).hexdigest()


def is_digest(text: str) -> bool:
    """Return whether a text has the form of a space file's digest."""
    return re.fullmatch(r"[0-9a-f]{16}", text) is not None


def _read_word(root: TomlTable, name: str, legal: Sequence[str]) -> str | None:
    word = root.text(name)
    if word is not None and word not in legal:
        raise root.unknown(name, name, word, legal)
    return word


def parse_space(text: str, *, where: str) -> SearchSpace:
    """Return the space that a text describes; ``where`` names it in messages.

    Raises:
        SpaceError: the text is no TOML or breaks a rule; the message names key, value, rule and legal values.

    >>> text = '''
    ... [parameters.micro_batch_size]
    ... choices = [1, 2, 4]
    ... flag = "--batch_size"
    ... '''
    >>> parse_space(text, where="example.toml").size()
    3
    """
    root = TomlTable(_parse_toml(text, where), where=where, legal=ROOT_KEYS)
    objective, second_objective = read_objectives(root)
    statistic = _read_word(root, "statistic", STATISTICS)
    facts, parameters = (root.table(name, legal=None) for name in ("workload", "parameters"))
    trainer = read_trainer(root)
    _check_names(facts, parameters)
    names = standard_names_of(parameters, [*facts])
    counted = [*facts, *(trainer.flags if trainer is not None else ())]
    declared = [name for name in parameters if not is_auto_accumulation(parameters, name, trainer)]
    meshes = {
        name: read_mesh(parameters, name, declared=[*facts, *parameters], trainer=trainer)
        for name in declared
        if is_mesh(parameters, name)
    }

    def read(name: str) -> Sequence[Parameter]:
        if name in meshes:
            return meshes[name].parameters
        return [read_parameter(parameters, name, facts=counted, where=where, trainer=trainer, names=names)]

    degrees = {name: [item.name for item in mesh.parameters] for name, mesh in meshes.items()}
    space = SearchSpace(
        parameters=tuple(chain(*map(read, declared))),
        constraints=(*(item for mesh in meshes.values() for item in mesh.constraints), *_read_constraints(root, names)),
        workload=tuple(read_fact(facts, name) for name in facts),
        project=root.text("project") or "",
        objective=objective or OBJECTIVES[0],
        is_objective_stated=bool(objective),
        second_objective=second_objective,
        prices=read_prices(root, names),
        job=read_job(root),
        statistic=statistic or MEAN,
        tune=read_tune(root.table("tune", legal=tuple(TUNE))),
        rewrite=_with_axes(read_rewrite(root, [*parameters, *chain(*degrees.values())], names), degrees),
        rules=_read_rules(root, trainer),
        log=read_log(root),
    )
    space = with_derived_world_size(space)
    if trainer is not None:
        space = with_trainer(space, trainer, accumulates=len(declared) < len(parameters))
    for check in _CHECKS:
        check(space, where)
    return space


def _with_axes(rules: RewriteRules, degrees: Mapping[str, Sequence[str]]) -> RewriteRules:
    """Return the rules of ``[rewrite]``, in which a frozen mesh stands for its degrees."""
    return replace(rules, freeze=tuple(chain(*(degrees.get(name, (name,)) for name in rules.freeze))))


def _parse_toml(text: str, where: str) -> dict[str, object]:
    try:
        return parse_toml(text)
    except (ValueError, RecursionError, MemoryError) as error:  # ValueError: also numbers of thousands of digits
        raise SpaceError(f"{where}: invalid TOML: {str(error) or 'it does not fit into memory':.200}") from None


def _check_names(facts: TomlTable, parameters: TomlTable) -> None:
    if not len(parameters):
        raise SpaceError(f"{parameters.place}: declare at least one parameter, [parameters.NAME]")
    for table in (facts, parameters):
        if len(table) > MAX_ENTRIES:
            raise SpaceError(f"{table.place}: at most {MAX_ENTRIES} entries are allowed, got {len(table)}")
        for name in table:
            if len(name) > MAX_NAME or not is_name(name):
                raise SpaceError(
                    f"{table.place}: invalid name {name!r:.80}; use up to {MAX_NAME} letters, digits and _, "
                    "no digit first, and no keyword of expressions"
                )
    for name in parameters:
        if name in facts:
            raise SpaceError(f"{parameters.place}.{name}: already declared as a workload fact")


def _read_constraints(root: TomlTable, names: Mapping[str, str]) -> tuple[Expression, ...]:
    tables = root.tables("constraints", legal=("require",))
    if len(tables) > MAX_ENTRIES:
        raise SpaceError(f"{root.place}: at most {MAX_ENTRIES} constraints are allowed, got {len(tables)}")
    constraints = []
    for table in tables:
        source = table.text("require")
        if source is None:
            raise SpaceError(f"{table.place}: missing key 'require'")
        constraints.append(parse_expression(source, where=f"{table.place}.require", names=names))
    return tuple(constraints)


def _read_rules(root: TomlTable, trainer: Trainer | None) -> tuple[LegalityRule, ...]:
    """Return the implied rules, without those of ``ignore_rules``."""
    rules = implied_rules(trainer)
    ignored = [str(name) for name in root.values("ignore_rules", most=MAX_ENTRIES)] if "ignore_rules" in root else []
    for name in ignored:
        if name not in {rule.name for rule in rules}:
            raise root.unknown("ignore_rules", "rule", name, [rule.name for rule in rules])
    return tuple(rule for rule in rules if rule.name not in ignored)


def _check_expressions(space: SearchSpace, where: str) -> None:
    derivations: dict[str, Derivation] = {
        item.name: item.derive for item in space.parameters if item.derive is not None
    }
    derivations |= {
        item.name: Conditional(item.name, item.when, item.derive, "")
        for item in space.parameters
        if item.when is not None
    }
    declared = [item.name for item in space.parameters] + [fact.name for fact in space.workload]
    known = list(dict.fromkeys([*declared, *PREDEFINED_NAMES]))
    for expression in _expressions(space):
        for name in sorted(expression.names.difference(known)):
            raise SpaceError(
                f"{expression.where}: {expression.source!r}: unknown name {name}; {choose_from(known, name)}"
            )
    try:
        in_dependency_order(derivations)
    except SpaceError as error:
        raise SpaceError(f"{where}: {error}") from None


def _expressions(space: SearchSpace) -> list[Expression]:
    """Return every expression of a space."""
    expressions = [expression for item in space.parameters for expression in (item.derive, item.when)]
    return [expression for expression in expressions if expression is not None] + list(space.constraints)


def _check_former_names(space: SearchSpace, where: str) -> None:
    owners = {fact.name: f"the workload fact {fact.name}" for fact in space.workload}
    owners |= {item.name: f"the parameter {item.name}" for item in space.parameters}
    for item in space.parameters:
        for name in item.was:
            if name in owners:
                raise SpaceError(f"{where}: parameters.{item.name}.was: {name!r} belongs to {owners[name]}")
            owners[name] = f"the parameter {item.name}"


def _check_bindings(space: SearchSpace, where: str) -> None:
    owners: dict[tuple[str, str], str] = {}
    bindings = [(f"workload.{item.name}", item.binding) for item in space.workload]
    bindings += [(f"parameters.{item.name}", item.binding) for item in space.parameters]
    bound_names = [
        (owner, binding.kind, name) for owner, binding in bindings if binding is not None for name in places_of(binding)
    ]
    bound_names += [("tune.args", BindingKind.FLAG, flag) for flag in space.tune.args]
    bound_names += [("tune.env", BindingKind.ENV, variable) for variable in space.tune.env]
    bound_names += [
        ("tune.files", BindingKind.FILE, f"{'.'.join(key)} in {file}")
        for file, keys in space.tune.files.items()
        for key in keys
    ]
    for owner, binding_kind, name in bound_names:
        is_flag = binding_kind == BindingKind.FLAG
        first = owners.setdefault((binding_kind, with_underscores(name) if is_flag else name), owner)
        if first != owner:
            raise SpaceError(f"{where}: {first} and {owner} are both bound to {binding_kind} {name}")


_CHECKS = (check_job, check_objectives, check_prices, _check_expressions, _check_bindings, _check_former_names)
"""Checks of a whole space, in this order; each raises ``SpaceError``."""
