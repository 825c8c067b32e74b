"""Number of parameters of the model that a program builds, counted in its source without running it."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from torchx_cubicml.launch.source_models.evaluator import OutOfSteps
from torchx_cubicml.launch.source_models.interpreter import Interpreter
from torchx_cubicml.launch.source_models.parsed_arguments import ParsedArguments

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchx_cubicml.launch.command_facts.stated_settings import StatedSettings
    from torchx_cubicml.launch.source_files import SourceFile
    from torchx_cubicml.launch.source_models.abstract_values import ModuleValue
    from torchx_cubicml.records.values import Scalar

_LARGEST = 10**15  # parameters: no model has more


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedModel:
    """Model that a program builds.

    Args:
        name: of its class.
        n_params: its parameters, shared ones counted once.
        is_whole: whether the program was followed to its end: what follows may build a larger one.
        asks_for_files: whether the program asks which files exist, as it was answered here.
    """

    name: str
    n_params: int
    is_whole: bool = True
    asks_for_files: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedProgram:
    """Program that was followed without running it.

    Args:
        model: the largest model that it builds; ``None`` where its source does not tell the sizes of one.
        defaults: argument of its parser -> its default, for those that the command does not state.
    """

    model: CountedModel | None = None
    defaults: Mapping[str, Scalar] = field(default_factory=dict)


def followed_program(files: Sequence[SourceFile], settings: StatedSettings) -> FollowedProgram:
    """Follow a program from its source and its command.

    Args:
        files: source files of the program, the script first.
        settings: values that the command states.
    """
    stems = Counter(file.path.stem for file in files[1:])  # of two modules of one name, it is not told which is meant
    trees = {file.path.stem: file.tree for file in files[1:] if file.tree is not None and stems[file.path.stem] == 1}
    script = files[0].tree if files else None
    if script is None:
        return FollowedProgram()
    arguments = ParsedArguments([script, *trees.values()], settings)

    def overridden(names: dict[str, object]) -> None:
        for name, setting in {**settings.files, **settings.arguments}.items():
            if type(names.get(name)) is type(setting.value):
                names[name] = setting.value

    interpreter = Interpreter(trees, call_hook=arguments.decide, on_exec=overridden)
    is_whole = False
    try:
        with suppress(OutOfSteps, RecursionError):  # a training loop may never end; the model is built before it
            interpreter.run(script, name="__main__")
            is_whole = True
        model = _largest(interpreter.built, interpreter.replaced, interpreter.taken_apart)
    except Exception:  # noqa: BLE001 - any text may be a program, and what cannot be followed is not counted
        model = None
    if model is not None:
        model = replace(model, is_whole=is_whole, asks_for_files=interpreter.asks_for_files)
    known = {name: value for name, value in arguments.followed.items() if name not in settings.arguments}
    defaults = {name: value for name, value in known.items() if isinstance(value, int | float | str)}
    return FollowedProgram(model=model, defaults=defaults)


def _largest(
    built: Sequence[ModuleValue], replaced: Sequence[ModuleValue], taken_apart: Sequence[ModuleValue]
) -> CountedModel | None:
    """Return the model with most parameters among those that no other holds; none if any of these cannot be counted.

    A part of one of these may be the model, too: then none is returned.
    """
    inner = {id(each) for module in built for each in module.modules() if each is not module}
    inner |= {id(each) for module in replaced for each in module.modules()}
    outer = [(module.doubts > 0, module.n_params(), module.name) for module in built if id(module) not in inner]
    is_apart = any(id(module) not in inner for module in taken_apart)
    if is_apart or not outer or any(count is None for _, count, _ in outer):
        return None
    count, name = max((count, name) for _, count, name in outer if count is not None)
    certain = [each for is_doubtful, each, _ in outer if not is_doubtful]
    others = {each for _, each, _ in outer if each}
    if not 0 < count <= _LARGEST or (count not in certain and len(others) > 1):
        return None
    return CountedModel(name=name, n_params=count)
