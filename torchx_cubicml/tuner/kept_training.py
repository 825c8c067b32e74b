"""Training that a tune keeps: the search space of the configs that a launch may run, and notices on what stays."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torchx_cubicml.errors import LaunchError, SpaceError
from torchx_cubicml.history.same_training import (
    batch_cure,
    batch_sizes,
    can_change_batch,
    check_batch_size,
    kept_batch,
    kept_line,
    not_permitted,
    with_same_training,
)
from torchx_cubicml.records.standard_names import ACCUMULATION, standard_flag_name
from torchx_cubicml.records.value_text import value_text
from torchx_cubicml.space.expression import parse_expression
from torchx_cubicml.space.fixed import with_fixed_values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.history.history import History
    from torchx_cubicml.launch import Launch
    from torchx_cubicml.records.values import Config, Workload
    from torchx_cubicml.space import Parameter, SearchSpace


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptTraining:
    """Search space of a tune that keeps the training.

    Args:
        space: the configs that train as the command does, or otherwise as the space file permits.
        notices: what stays as typed although the file lists other values, and how to let it vary.
        is_empty: whether no other config than the user's own is left because of it.
    """

    space: SearchSpace
    notices: tuple[str, ...] = ()
    is_empty: bool = False


def keep_training(history: History, launch: Launch, *, where: str) -> KeptTraining:
    """Return the search space that keeps the training of a command, with notices on what stays.

    Args:
        history: of the same work, in the terms of the space as the user wrote it.
        launch: the command, which may have a flag for the accumulation.
        where: path of the space file, for messages.

    Raises:
        SpaceError: the space has no legal config.
        LaunchError: no config of the space keeps the training, or the file states another global batch.
    """
    space, workload, current = history.space, history.workload, history.current
    check_batch_size(workload=workload, current=current)
    space.bind(workload=workload, current=current)
    held, keeps_batch = not_permitted(space), can_change_batch(space, workload=workload, current=current)
    if not held and not keeps_batch:
        return KeptTraining(space=space)
    facts = {**workload, **kept_batch(history.own, current=current)}
    kept = with_same_training(space, workload=facts, current=current)
    sizes = batch_sizes(space) if keeps_batch else []
    try:
        bound = kept.bind(workload=workload, current=current)
    except SpaceError:
        cure = _cure(space, launch, sizes, where)
        why = f"no config of {where} keeps the training of your command"
        raise LaunchError(f"{why}; add its own values to the choices, or {cure}") from None
    free = {item.name for item in space.parameters if len(item.choices) > 1}
    notices = [kept_line(name) for name in held if name in free]
    stuck = [item for item in sizes if not _can_vary(kept, item, workload, current)]
    if stuck:
        cure = _cure(space, launch, stuck, where)
        notices.append(f"keeping {_names(stuck)}: another value changes the global batch; {cure}")
    is_empty = bool(notices) and bound.size(limit=2) == 1 and current in bound
    return KeptTraining(space=kept, notices=tuple(notices), is_empty=is_empty)


def with_kept_batch(
    space: SearchSpace, names: Sequence[str], *, workload: Workload, current: Config, where: str
) -> SearchSpace:
    """Return the search space with parameters held that launches have shown to change the global batch size.

    Args:
        space: of a tune.
        names: the parameters.
        workload: facts of the launch.
        current: the user's own config.
        where: path of the space file, for messages.

    Raises:
        LaunchError: no config is left.
    """
    held = with_fixed_values(space, current, names)
    try:
        held.bind(workload=workload, current=current)
    except SpaceError:
        own = " and ".join(f"{name} = {value_text(current[name])}" for name in names)
        raise LaunchError(
            f"launches show that the global batch size depends on {' and '.join(names)}, and no config of "
            f"{where} has {own} as your command; add such configs to the space file, or set "
            "changes_training = true to allow another batch"
        ) from None
    return held


def _can_vary(space: SearchSpace, item: Parameter, workload: Workload, current: Config) -> bool:
    """Return whether a legal config has another value of a parameter than the user's own."""
    if item.name not in current:
        return True
    differs = parse_expression(f"{item.name} != {current[item.name]}", where=item.name)
    try:
        replace(space, constraints=(*space.constraints, differs)).bind(workload=workload, current=current)
    except SpaceError:
        return False
    return True


def _cure(space: SearchSpace, launch: Launch, sizes: Sequence[Parameter], where: str) -> str:
    flag = next((word.partition("=")[0] for word in launch.script_args if _is_accumulation(word)), "")
    return batch_cure(space, [item.name for item in sizes], flag=flag, where=where)


def _is_accumulation(word: str) -> bool:
    return word.startswith("-") and standard_flag_name(word.partition("=")[0]) == ACCUMULATION


def _names(items: Sequence[Parameter]) -> str:
    return " and ".join(item.label or item.name for item in items)
