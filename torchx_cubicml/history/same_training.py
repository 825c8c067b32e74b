"""Same training: the parameters and the global batch that stay as in a command unless the space file permits a change.

An ordinary launch, ``suggest`` and a tune share these rules, so that a launch takes what a tune has found.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.history.objective import COUNT_WORK, uncounted_sizes
from torchx_cubicml.history.present_command import setting_names
from torchx_cubicml.records.argument_words import argument_words
from torchx_cubicml.records.config_changes import config_values
from torchx_cubicml.records.standard_names import ACCUMULATION, BATCH_FLAGS, GLOBAL_BATCH, MICRO_BATCH
from torchx_cubicml.records.trial import State
from torchx_cubicml.records.workload import collapsed, recency, value_key
from torchx_cubicml.space import BindingKind, computed_global_batch_size
from torchx_cubicml.space.constraints import IN_BATCH, batch_derivation, is_count, stated_dp_degree
from torchx_cubicml.space.expression import parse_expression
from torchx_cubicml.space.fixed import with_fixed_values
from torchx_cubicml.space.trainers import CHANGES_TRAINING

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    from torchx_cubicml.history.history import History
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Config, Value, Workload
    from torchx_cubicml.space import Parameter, SearchSpace

_PER_RANK = (MICRO_BATCH, ACCUMULATION)
_BATCH = (*_PER_RANK, GLOBAL_BATCH)
_BATCH_AND_RANKS = IN_BATCH | {"dp_degree", "world_size", "nnodes", "nproc_per_node"}
_SCRIPT_BATCH = "script_batch_size"
_PERMIT = "set changes_training = true"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchChange:
    """Change of the global batch size.

    Args:
        before: product of its known factors in the user's own config.
        after: the same in another config.
        is_whole: whether all factors are known, so that the products are the global batch sizes.
    """

    before: int
    after: int
    is_whole: bool

    def __str__(self) -> str:
        """Return the change in words.

        >>> str(BatchChange(before=8, after=12, is_whole=True)), str(BatchChange(before=8, after=12, is_whole=False))
        ('from 8 to 12', 'by a factor of 1.5')
        """
        return f"from {self.before} to {self.after}" if self.is_whole else f"by a factor of {self.ratio:.3g}"

    @property
    def ratio(self) -> float:
        """Ratio of the batch sizes, after over before."""
        return self.after / self.before


def changes_training(parameter: Parameter) -> bool:
    """Return whether a parameter is known to change what is trained, by its own name or that of its flag.

    >>> from torchx_cubicml.space import Parameter
    >>> changes_training(Parameter(name="dtype", choices=("fp32", "bf16"))), changes_training(
    ...     Parameter(name="tp_degree", choices=(1, 2))
    ... )
    (True, False)
    """
    return not parameter.known_names.isdisjoint(CHANGES_TRAINING)


def not_permitted(space: SearchSpace) -> tuple[str, ...]:
    """Return the names of parameters that change what is trained without the space file's permission."""
    return tuple(item.name for item in space.parameters if changes_training(item) and not item.changes_training)


def global_batch(workload: Workload, config: Config) -> int | None:
    """Return the global batch size of a config; ``None`` where one of its factors is not among the known values."""
    is_whole = all(name in workload or name in config for name in _PER_RANK)
    return batch_factors(workload, config) if is_whole else None


def shown_always(space: SearchSpace) -> frozenset[str]:
    """Return the parameters that a table shows even where they stay: those of the batch and of what is trained."""
    return frozenset(
        item.name
        for item in space.parameters
        if item.name in IN_BATCH or item.changes_training or changes_training(item)
    )


def kept_line(name: str) -> str:
    """Return the message that a parameter stays, because it changes what is trained."""
    return f"keeping {name}: it changes what is trained (set changes_training = true in the space file to allow it)"


def observed_batch_line(name: str) -> str:
    """Return the message that a parameter stays, because launches show that it changes the global batch."""
    return (
        f"keeping {name}: launches that differ in it had different global batch sizes "
        "(set changes_training = true in the space file to allow it)"
    )


def batch_lines(history: History) -> dict[str, str]:
    """Return the parameters that stay because of the global batch, as launches show, each with the message on it.

    See ``batch_parameters``, ``batch_contradiction`` and ``uncounted_sizes``.
    """
    space, own, current = history.space, history.own, history.current
    why = batch_contradiction(space, own, current=current)
    uncounted = f"steps alone were counted, and those of another value may do other work; {COUNT_WORK}"
    lines = {name: f"keeping {name}: {uncounted}" for name in uncounted_sizes(space, own, current=current)}
    lines |= {name: observed_batch_line(name) for name in batch_parameters(space, own, suspected=True)}
    return lines | {item.name: why for item in batch_sizes(space) if why}


def batch_cure(space: SearchSpace, sizes: Iterable[str], *, flag: str | None = None, where: str = "") -> str:
    """Return the advice that lets sizes of the batch vary: lines that keep the global batch, and the permission.

    Args:
        space: as the user wrote it.
        sizes: names of parameters of the batch or of the ranks.
        flag: of the accumulation in the command; empty if it has none, ``None`` for advice of one line.
        where: path of the space file.
    """
    named = {item.name: item.label or item.name for item in space.parameters}
    of_sizes = " and ".join(named[name] for name in sizes)
    permit = f"{_PERMIT} on {of_sizes}" if of_sizes else _PERMIT
    if MICRO_BATCH not in named:
        return f"to allow that, {permit}"
    derive = f'derive = "{batch_derivation(named[MICRO_BATCH])}"'
    if ACCUMULATION in named:
        return f"to keep it, write {derive} in place of the choices of {named[ACCUMULATION]}; to allow that, {permit}"
    first = "to keep it" if flag else "to keep it with a script that accumulates gradients"
    if flag is None:
        return f"{first}, add [parameters.{ACCUMULATION}] with its flag and {derive}; to allow that, {permit}"
    lines = f'[parameters.{ACCUMULATION}]\n{derive}\nflag = "{flag or "--FLAG"}"'
    return f"{first}, add to {where}:\n{lines}\nTo allow that, {permit}."


def batch_sizes(space: SearchSpace) -> list[Parameter]:
    """Return the parameters with several choices on which the global batch depends, without permission to change it."""
    free = [item for item in space.parameters if item.derive is None and len(item.choices) > 1]
    return [item for item in free if item.name in _BATCH_AND_RANKS and not item.changes_training]


def check_batch_size(*, workload: Workload, current: Config) -> None:
    """Check that the space file and the command agree on the global batch size.

    Raises:
        LaunchError: they do not.
    """
    stated = workload.get(GLOBAL_BATCH, current.get(GLOBAL_BATCH))
    computed = computed_global_batch_size(workload=workload, current=current)
    if stated is not None and computed is not None and stated != computed:
        raise LaunchError(f"the space file states a global batch size of {stated}, but the command has {computed}")


def batch_difference(trial: Trial) -> str:
    """Return the batch that a launch requested and another one that was observed, in words; empty without a difference.

    Micro batch and accumulation count by their product, as the stages of a pipeline split a micro batch.

    >>> from torchx_cubicml.records.trial import Trial
    >>> seen = {"micro_batch_size": 8, "gradient_accumulation_steps": 2, "global_batch_size": 32}
    >>> launch = Trial(trial_id="a", workload={}, config={"micro_batch_size": 4}, observed=seen, state=State.COMPLETED)
    >>> batch_difference(launch)
    'batch 4, but its launch had batch 8, accumulation 2, global batch 32'
    """
    if _observed_ratio(trial) in {None, 1}:
        return ""
    known = {**trial.workload, **trial.config}
    known |= {GLOBAL_BATCH: script_batch(known, {}) or global_batch(trial.workload, trial.config) or 0}
    shown = [{name: facts[name] for name in _BATCH if facts.get(name)} for facts in (known, trial.observed)]
    return ", but its launch had ".join(", ".join(config_values(each)) for each in shown).replace("_", " ")


def _observed_ratio(trial: Trial) -> Fraction | None:
    """Return the observed batch of a rank over the requested one; ``None`` where either is unknown."""
    known = {**trial.workload, **trial.config}
    names = [name for name in _PER_RANK if name in known]
    asked, seen = ([each for name in names if is_count(each := facts.get(name))] for facts in (known, trial.observed))
    is_part = names == [MICRO_BATCH] and trial.observed.get("pp_degree", 1) != 1
    is_known = bool(names) and len(asked) == len(seen) == len(names) and not is_part
    return Fraction(math.prod(seen), math.prod(asked)) if is_known else None


def batch_contradiction(space: SearchSpace, own: Iterable[Trial], *, current: Config) -> str:
    """Return the message that the latest launch of the user's own batch contradicts the space file; empty if none does.

    Where the command states the sizes, and launches of others differ by the same factor, if there are any, the script
    only counts otherwise: all ranks together, or each row of a sample. A launch that ran out of memory may have gone on
    with less.

    Args:
        space: as the user wrote it.
        own: trials of the workload that did the same work. One lacks a value if its arguments do not state it and the
            space file's default was not observed.
        current: the user's own config.
    """
    sizes = {name: value for name, value in current.items() if name in _BATCH_AND_RANKS}
    ran = [each for each in own if GLOBAL_BATCH in each.observed and each.state is not State.OUT_OF_MEMORY]
    same = [each for each in ran if {**sizes, **each.config}.items() >= sizes.items()]
    if not same or not batch_sizes(space):
        return ""
    latest = replace(max(same, key=recency), config=current)
    typed = argument_words(latest.arguments or ()).keys()
    flags = [item.binding for item in space.parameters if item.name in _PER_RANK and item.binding is not None]
    is_stated = all(each.kind != BindingKind.FLAG or not {*setting_names(each)}.isdisjoint(typed) for each in flags)
    others = {_observed_ratio(each) for each in ran if each not in same} - {None}
    found = "" if is_stated and others <= {_observed_ratio(latest)} else batch_difference(latest)
    return found and (
        f"by the space file your command has {found}: name in the space file what sets the batch, or state it in the "
        "command (changes_training = true on the sizes of the batch goes on all the same)"
    )


def kept_batch(own: Iterable[Trial], *, current: Config) -> dict[str, int]:
    """Return the global batch size that the script keeps, as a workload fact; empty where no launches show one.

    Launches that differ in the micro batch alone, and had one global batch, show that the script derives the
    accumulation from a total. That tells nothing of other ranks.

    Args:
        own: trials of the workload that did the same work.
        current: the user's own config.
    """
    sizes: defaultdict[tuple[Hashable, int], set[Value]] = defaultdict(set)
    for trial in own:
        batch, micro = (trial.observed.get(name) for name in (GLOBAL_BATCH, MICRO_BATCH))
        if trial.arguments is not None and is_count(batch) and micro is not None:
            sizes[_values(trial, sorted(trial.config.keys() - {MICRO_BATCH})), batch].add(micro)
    found = {batch for (_, batch), several in sizes.items() if len(several) > 1}
    is_alone = current.keys() & _BATCH_AND_RANKS == {MICRO_BATCH}
    return {_SCRIPT_BATCH: found.pop()} if is_alone and len(found) == 1 else {}


def script_batch(workload: Workload, current: Config) -> int | None:
    """Return the global batch size that the script keeps by deriving its accumulation; ``None`` if that is unknown.

    A space file states it by a fact, in samples or tokens.

    >>> script_batch({"script_batch_tokens": 4096, "seq_len": 128}, {}), script_batch({"script_batch_size": 32}, {})
    (32, 32)
    """
    known = {**workload, **current}
    tokens, length = known.get("script_batch_tokens"), known.get("seq_len")
    batch = tokens // length if is_count(tokens) and is_count(length) else known.get(_SCRIPT_BATCH)
    return batch if is_count(batch) and ACCUMULATION not in known else None


def with_same_training(space: SearchSpace, *, workload: Workload, current: Config) -> SearchSpace:
    """Return the space of the configs that train as the command does, or in another way that the space file permits.

    Args:
        space: as the user wrote it.
        workload: facts of the launch.
        current: the user's own config.

    Raises:
        LaunchError: a value that stays differs between layers, which a single choice cannot hold.
    """
    names = {name for name in not_permitted(space) if name in current}
    layered = sorted(name for name in names if isinstance(collapsed(current[name]), tuple))
    if layered:
        raise LaunchError(
            f"{' and '.join(layered)} changes what is trained and differs between the layers of your command, so that "
            "it cannot be held; leave it out of the space file, or set changes_training = true on it"
        )
    held = with_fixed_values(space, current, names)
    return (
        with_fixed_batch(held, workload=workload, current=current)
        if can_change_batch(space, workload=workload, current=current)
        else held
    )


def batch_change(space: SearchSpace, *, workload: Workload, current: Config, config: Config) -> BatchChange | None:
    """Return the change of the global batch size by ``config`` without permission; ``None`` without one."""
    if _is_permitted(space, current, config):
        return None
    before, after = batch_factors(workload, current), batch_factors(workload, config)
    if before is None or after is None or before == after:
        return None
    is_whole = not {global_batch(workload, current), script_batch(workload, current)} <= {None}
    return BatchChange(before=before, after=after, is_whole=is_whole)


def is_same_training(
    space: SearchSpace, *, workload: Workload, current: Config, config: Config, held: Iterable[str] = ()
) -> bool:
    """Return whether a config trains as the user's own does, or in another way that the space file permits.

    Args:
        space: as the user wrote it.
        workload: facts of the launch.
        current: the user's own config.
        config: the other one.
        held: parameters that launches have shown to change the global batch, see ``batch_parameters``.
    """
    kept = [name for name in {*not_permitted(space), *held} if name in config and name in current]
    is_kept = all(value_key(config[name]) == value_key(current[name]) for name in kept)
    return is_kept and batch_change(space, workload=workload, current=current, config=config) is None


def can_change_batch(space: SearchSpace, *, workload: Workload, current: Config) -> bool:
    """Return whether legal configs can change the command's global batch size although that is not permitted."""
    factors = [item for item in space.parameters if item.name in _BATCH_AND_RANKS and not item.changes_training]
    is_free = any(len(item.choices) != 1 for item in factors)
    return is_free and not space.derives_batch and batch_factors(workload, current) is not None


def with_fixed_batch(space: SearchSpace, *, workload: Workload, current: Config) -> SearchSpace:
    """Constrain the space to configs with the command's global batch size, or with another one that is permitted."""
    known = {**workload, **current}
    factors = [name for name in _PER_RANK if name in known]
    kept = f"{' * '.join([*factors, 'dp_degree'])} == {batch_factors(workload, current)}"
    batch = script_batch(workload, current)
    if batch is not None and MICRO_BATCH in known:
        divides = f"{batch} % ({MICRO_BATCH} * dp_degree) == 0"
        kept = divides if batch == batch_factors(workload, current) else f"{MICRO_BATCH} == {known[MICRO_BATCH]}"
    permitted = [item.name for item in space.parameters if item.changes_training and item.name in _BATCH_AND_RANKS]
    permitted = [name for name in permitted if is_count(current.get(name))]
    changed = [f"{name} != {current[name]}" for name in permitted]
    constraint = parse_expression(" or ".join([*changed, kept]), where="the global batch size of the command")
    return replace(space, constraints=(*space.constraints, constraint))


def batch_parameters(space: SearchSpace, own: Iterable[Trial], *, suspected: bool = False) -> tuple[str, ...]:
    """Return the parameters that change the global batch size without permission, as launches of the workload show.

    Launches that differ in such a parameter alone, and in what is derived from it, were observed with different global
    batch sizes. Where launches differ in several, one is found if no other could be the cause, or none of its name.
    Parameters whose names tell as much are left out where micro batch or accumulation are known, too: other rules keep
    their product.

    Args:
        space: as the user wrote it.
        own: trials of the workload.
        suspected: whether to return each parameter that alone could be the cause, where launches do not decide.
    """
    observing = [trial for trial in own if GLOBAL_BATCH in trial.observed]
    doubtful = [item for item in space.parameters if item.derive is None and not item.changes_training]
    known = {*(item.name for item in space.parameters), *(fact.name for fact in space.workload)}
    ruled = frozenset[str]() if known.isdisjoint(_PER_RANK) else _BATCH_AND_RANKS
    free = [item for item in doubtful if item.name not in ruled]
    found = {item.name for item in free if _changes_batch(item.name, _others(space, item.name), observing)}
    given = sorted({*ruled, *found, *(item.name for item in space.parameters if item.changes_training)})
    if not _tell_batch(given, observing):
        causes = [item for item in free if item.name not in found and _tell_batch([*given, item.name], observing)]
        causes = [item for item in causes if not item.known_names.isdisjoint(BATCH_FLAGS)] or causes
        found |= {item.name for item in causes if suspected or len(causes) == 1}
    return tuple(item.name for item in free if item.name in found)


def batch_factors(workload: Workload, config: Config) -> int | None:
    """Return the product of the known factors of the global batch; ``None`` where no size of a batch is among them.

    A factor that neither the workload nor the config has stays as typed.
    """
    known: Mapping[str, Value] = {**workload, **config}
    factors = [*(known[name] for name in _PER_RANK if name in known), stated_dp_degree(workload, config)]
    product = 1
    for factor in factors:
        if not is_count(factor):
            return None
        product *= factor
    batch = script_batch(workload, config)
    if batch is not None and MICRO_BATCH in known:
        return product * max(batch // product, 1)  # such a script rounds its accumulation down
    return product if len(factors) > 1 else None


def _is_permitted(space: SearchSpace, current: Config, config: Config) -> bool:
    changed = (item for item in space.parameters if config.get(item.name) != current.get(item.name))
    return any(item.changes_training and item.name in _BATCH_AND_RANKS for item in changed)


def _others(space: SearchSpace, name: str) -> list[str]:
    """Return the parameters that neither are ``name`` nor are derived from it.

    A derived one counts too: an earlier space file may have left it free, so that launches differ in it.
    """
    following = {name}
    derived = [item for item in space.parameters if item.derive is not None]
    while (
        found := {item.name for item in derived if item.derive and not following.isdisjoint(item.derive.names)}
        - following
    ):
        following |= found
    return [item.name for item in space.parameters if item.name not in following]


def _changes_batch(name: str, others: Sequence[str], observing: Iterable[Trial]) -> bool:
    batches: defaultdict[Hashable, dict[Hashable, Value]] = defaultdict(dict)
    for trial in observing:
        if name in trial.config:
            rest = _values(trial, sorted(others))
            batches[rest].setdefault(value_key(trial.config[name]), trial.observed[GLOBAL_BATCH])
    return any(len(set(found.values())) > 1 for found in batches.values())


def _tell_batch(names: Sequence[str], observing: Iterable[Trial]) -> bool:
    """Return whether launches with equal values of some parameters were observed with equal global batch sizes."""
    batches: defaultdict[Hashable, set[Value]] = defaultdict(set)
    for trial in observing:
        batches[_values(trial, names)].add(trial.observed[GLOBAL_BATCH])
    return all(len(found) == 1 for found in batches.values())


def _values(trial: Trial, names: Iterable[str]) -> Hashable:
    return tuple((name, value_key(trial.config[name])) for name in names if name in trial.config)
