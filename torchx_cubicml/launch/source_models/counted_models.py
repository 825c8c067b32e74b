"""Number of parameters of the model that a program builds, counted in its source without running it."""

from __future__ import annotations

import ast
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchx_cubicml.launch.command_facts.source_literals import parser_flags
from torchx_cubicml.launch.source_models.abstract_values import UNKNOWN, UNKNOWN_NAMES, Instance, ModuleValue
from torchx_cubicml.launch.source_models.evaluator import OutOfSteps
from torchx_cubicml.launch.source_models.interpreter import Interpreter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.launch.command_facts.stated_settings import StatedSettings
    from torchx_cubicml.launch.source_files import SourceFile


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedModel:
    """Model that a program builds.

    Args:
        name: of its class.
        n_params: its parameters, shared ones counted once.
    """

    name: str
    n_params: int


def counted_model(files: Sequence[SourceFile], settings: StatedSettings) -> CountedModel | None:
    """Return the largest model that a program builds; ``None`` where its source does not tell the sizes of one.

    Args:
        files: source files of the program, the script first.
        settings: values that the command states.
    """
    trees = {file.path.stem: file.tree for file in files[1:] if file.tree is not None}
    script = files[0].tree if files else None
    if script is None:
        return None
    arguments = _parsed_arguments([script, *trees.values()], settings)

    def decided(name: str, node: ast.Call) -> object | None:
        last = name.rpartition(".")[2]
        if last in {"parse_args", "parse_known_args", "parse_args_into_dataclasses"}:
            return arguments if last == "parse_args" else (arguments, []) if last == "parse_known_args" else UNKNOWN
        return None

    def overridden(names: dict[str, object]) -> None:
        for name, setting in {**settings.files, **settings.arguments}.items():
            if type(names.get(name)) is type(setting.value):
                names[name] = setting.value

    interpreter = Interpreter(trees, call_hook=decided, on_exec=overridden)
    try:
        with suppress(OutOfSteps, RecursionError):  # a training loop may never end; the model is built before it
            interpreter.run(script, name="__main__")
        return _largest(interpreter.built)
    except Exception:  # noqa: BLE001 - any text may be a program, and what cannot be followed is not counted
        return None


def _parsed_arguments(trees: Sequence[ast.Module], settings: StatedSettings) -> Instance:
    """Return the arguments as argparse would give them; those without a default or with an own type are unknown."""
    attributes: dict[str, object] = {}
    for tree in trees:
        for name, flag in parser_flags(tree).items():
            setting = settings.arguments.get(name)
            value = flag.default if setting is None else setting.value
            is_unknown = (value is None and not flag.has_no_default) or (flag.has_own_type and isinstance(value, str))
            attributes.setdefault(name, UNKNOWN if is_unknown else value)
        if _adds_unnamed_flags(tree):
            stated = {name: setting.value for name, setting in settings.arguments.items()}
            attributes = {**stated, **attributes, UNKNOWN_NAMES: UNKNOWN}
    return Instance(attributes=attributes)


def _adds_unnamed_flags(tree: ast.Module) -> bool:
    """Return whether a source adds flags to a parser whose names it does not spell out, as in a loop."""
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args)
    added = (node for node in calls if getattr(node.func, "attr", "") == "add_argument")
    return any(not isinstance(each, ast.Constant) for node in added for each in node.args)


def _largest(built: Sequence[ModuleValue]) -> CountedModel | None:
    """Return the model with most parameters among those that no other holds; none if any of these cannot be counted."""
    inner = {id(each) for module in built for each in module.modules() if each is not module}
    outer = [(module.doubts > 0, module.n_params(), module.name) for module in built if id(module) not in inner]
    if not outer or any(count is None for _, count, _ in outer):
        return None
    count, name = max((count, name) for _, count, name in outer if count is not None)
    certain = [each for is_doubtful, each, _ in outer if not is_doubtful]
    others = {each for _, each, _ in outer if each}
    if count == 0 or (count not in certain and len(others) > 1):
        return None
    return CountedModel(name=name, n_params=count)
