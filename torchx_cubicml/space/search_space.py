"""Search space: parameters with their legal values and bindings, and constraints between them.

A space read from a file is bound to one workload before it is searched (``SearchSpace.bind``). Only then are the number
of layers of a per-layer parameter and the derived parameters known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Self

from torchx_cubicml.errors import SpaceError
from torchx_cubicml.records.measurement import MEAN
from torchx_cubicml.records.objective_units import counted_rate, rate_of
from torchx_cubicml.records.standard_names import ACCUMULATION, BATCH_FLAGS, MICRO_BATCH, WORKLOAD_SIZES
from torchx_cubicml.records.values import MAX_ITEMS
from torchx_cubicml.space.arithmetic import kind
from torchx_cubicml.space.constraints import (
    IN_BATCH,
    NOT_DATA_PARALLEL,
    Conditional,
    data_parallel_degree,
    derived_value,
    dp_degree_expression,
    in_dependency_order,
    is_count,
    stated_dp_degree,
)
from torchx_cubicml.space.divisors import dividing_choices
from torchx_cubicml.space.legal_configs import FreeParameter, LegalConfigs
from torchx_cubicml.space.legality import RulesInForce, rule_effects, rules_in_force
from torchx_cubicml.space.parameter import OF_MACHINE, BindingKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy as np

    from torchx_cubicml.records.device_prices import Prices
    from torchx_cubicml.records.job_time import Job
    from torchx_cubicml.records.log_pattern import LogPattern
    from torchx_cubicml.records.values import Config, Scalar, Value, Workload
    from torchx_cubicml.space.constraints import Derivation
    from torchx_cubicml.space.expression import Expression
    from torchx_cubicml.space.legality import LegalityRule, RuleEffect
    from torchx_cubicml.space.parameter import Parameter, WorkloadFact

_OF_WORLD = frozenset({"world_size", "nnodes", "nproc_per_node"})
_FACTORS = IN_BATCH - {"global_batch_size"}  # of the global batch
_RESTS = frozenset({MICRO_BATCH, ACCUMULATION})  # factors that may be derived from it
_IN_WORK = WORKLOAD_SIZES | BATCH_FLAGS | IN_BATCH | _OF_WORLD  # of an optimizer step


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneChanges:
    """Changes of a profiling launch besides its config; ``{scratch}`` and ``{launch_id}`` are filled in.

    Args:
        args: flag -> value.
        env: variable -> value.
        files: argument or variable that names a config file -> key in it, outermost name first -> value.
    """

    args: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, Mapping[tuple[str, ...], str]] = field(default_factory=dict)


RESHARDS = "reshards"


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteRules:
    """Conditions for rewriting an ordinary launch; they do not bind ``tune``.

    Args:
        min_gain: minimum predicted gain of a rewrite, as a share: 0.01 is a per cent.
        min_fit: minimum probability that the rewritten launch fits in memory, 0..1.
        freeze: parameters that stay as typed.
        explore: share of launches that explore an informative config, 0..1; none by default.
        explore_budget_device_hours: budget of all those launches together: wall hours times world size.
        baseline_every: while a gain rests on few measurements of the user's own config, one in so many launches runs
            it; 0 for none.
        retry_as_typed: whether a rewritten launch that fails early is started again as typed.
        resume: parameters that may change where a launch goes on with an earlier training; ``RESHARDS`` stands for
            those of the layout.
    """

    min_gain: float = 0.01
    min_fit: float = 0.9
    freeze: tuple[str, ...] = ()
    explore: float = 0.0
    explore_budget_device_hours: float = 0.0
    baseline_every: int = 4
    retry_as_typed: bool = True
    resume: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Dimension:
    """One free choice of a bound space: a parameter, or one entry or group of a value per layer or table.

    Args:
        parameter: name of the parameter.
        positions: entries of the value that it sets; empty for a single value.
        choices: legal values.
        entries: what the entries of the value belong to, in words.
    """

    parameter: str
    positions: tuple[int, ...]
    choices: tuple[Scalar, ...]
    entries: str = "layers"


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """Search space: all legal configs.

    Args:
        parameters: free and derived ones, in the order of the file.
        constraints: predicates that every legal config meets.
        workload: facts that the file declares.
        project: name of the project that the program belongs to; empty where it is found from the program's folder.
        objective: name of the throughput maximised.
        is_objective_stated: whether the user chose it; else it follows from what launches were measured in.
        second_objective: objective that a tune trades the first against; empty without one.
        prices: prices of a device hour; ``None`` if the file has none.
        job: work of the whole job, for the objective ``soonest_done``; ``None`` for all others.
        statistic: statistic over the steps of a launch that gives its throughput.
        tune: changes of a profiling launch besides its config.
        rewrite: conditions for rewriting an ordinary launch.
        log: pattern of throughput in the program's output; ``None`` if the file has none.
        rules: implied rules, which count if their names are known and no evidence contradicts them.
        rule_facts: facts that only rules read, with their places in a command; they separate no workloads.
        digest: digest of the file; empty for a space without one.
        known: values of such facts, as the command states them or earlier launches observed them.
        facts: facts fixed by ``bind``: those of the workload, ``world_size``, ``global_batch_size``...
        own: the user's own values of the parameters that may be idle, also fixed by ``bind``.
        in_force: implied rules that count for the workload, also fixed by ``bind``.
    """

    parameters: tuple[Parameter, ...]
    constraints: tuple[Expression, ...] = ()
    workload: tuple[WorkloadFact, ...] = ()
    project: str = ""
    objective: str = "tokens_per_second"
    is_objective_stated: bool = True
    second_objective: str = ""
    prices: Prices | None = None
    job: Job | None = None
    statistic: str = MEAN
    tune: TuneChanges = field(default_factory=TuneChanges)
    rewrite: RewriteRules = field(default_factory=RewriteRules)
    log: LogPattern | None = None
    rules: tuple[LegalityRule, ...] = ()
    rule_facts: tuple[WorkloadFact, ...] = ()
    digest: str = field(default="", compare=False)
    known: Mapping[str, Value] = field(default_factory=dict)
    facts: Mapping[str, Value] = field(default_factory=dict)
    own: Mapping[str, Value] = field(default_factory=dict)
    in_force: RulesInForce = field(default_factory=RulesInForce)
    _legal_cache: LegalConfigs | None = field(init=False, default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        names = [parameter.name for parameter in self.parameters]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise SpaceError(f"parameter declared more than once: {', '.join(repeated)}")

    def bind(self, *, workload: Workload, current: Config, ran: Sequence[Config] = ()) -> Self:
        """Return this space for one workload, with facts, per-layer sizes, ``global_batch_size`` and rules fixed.

        Args:
            workload: facts, with ``world_size``; a ``global_batch_size`` among them is kept.
            current: the user's own config, from which ``global_batch_size`` is computed; may be empty.
            ran: configs that were launched and measured: they set aside the implied rules that they break.

        Raises:
            SpaceError: a fact is missing, a derivation is circular, or no config is legal.
        """
        tuned = {parameter.name for parameter in self.parameters}
        stated = {fact.name: fact.value for fact in self.workload if fact.binding is None and fact.value is not None}
        facts = _with_derived_facts({**stated, **workload}, current, tuned=tuned)
        facts = {name: value for name, value in facts.items() if name not in tuned}
        own = {item.name: current[item.name] for item in self.parameters if item.when and item.name in current}
        same = facts == self.facts and own == self.own
        bound = self if same else replace(self, facts=facts, own=own, in_force=RulesInForce())
        in_force = RulesInForce()
        if self.rules:
            in_force = rules_in_force(self.rules, bound._legal_without_rules(), own=current, ran=ran)
        bound = bound if in_force == bound.in_force else replace(bound, in_force=in_force)  # keeps its cache if equal
        bound._legal().refuse_empty()
        return bound

    @property
    def rate(self) -> str:
        """Name of the throughput per second that the objective is made of."""
        return self.job.rate if self.job is not None else counted_rate(self.objective)

    @property
    def learned(self) -> str:
        """Name of the measured quantity that is learned, where the rest of the objective is known; see ``rate_of``."""
        return self.job.rate if self.job is not None else rate_of(self.objective)

    @property
    def scheduler_options(self) -> dict[str, str]:
        """Parameter -> option of the scheduler that it is bound to; only who submits a job can set them."""
        bindings = ((item.name, item.binding) for item in self.parameters)
        return {name: each.name for name, each in bindings if each is not None and each.kind == BindingKind.SCHEDULER}

    @property
    def chooses_machine(self) -> bool:
        """True if a parameter may choose the machine: an option of the component or of the scheduler.

        One that is fixed to its own value counts, too: earlier launches may have had another one.
        """
        return any(item.binding is not None and item.binding.kind in OF_MACHINE for item in self.parameters)

    @property
    def derives_batch(self) -> bool:
        """True if micro batch or accumulation always follow from the global batch and all of its factors that vary."""
        varied = {item.name for item in self.parameters if len(item.choices) != 1 or item.when is not None}
        chosen = {item.name for item in self.parameters if item.derive is None}
        needed = {"global_batch_size", *(varied & (_FACTORS | _OF_WORLD)), *(varied & chosen & {"dp_degree"})}
        derived = (item for item in self.parameters if item.derive is not None and item.when is None)
        return any(needed <= self._reads(item.name) for item in derived if item.name in _RESTS)

    def without_rules(self) -> Self:
        """Return this space without implied rules: for configs that were chosen under them, or that ran."""
        return replace(self, rules=(), in_force=RulesInForce()) if self.rules else self

    def effects(self) -> list[RuleEffect]:
        """Return the number of combinations that each rule leaves, for the rules that exclude any."""
        return rule_effects(self._legal(), self.in_force.rules)

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """Free choices of a bound space."""
        of_tables = {item.name for item in self.parameters if item.per_table is not None}
        return tuple(
            Dimension(parameter.name, block, parameter.choices, "tables" if parameter.name in of_tables else "layers")
            for parameter in self._free_parameters()
            for block in (parameter.blocks if parameter.blocks is not None else ((),))
        )

    @property
    def legal(self) -> LegalConfigs:
        """Legal configs of a bound space as choice vectors, for work on many at once."""
        return self._legal()

    def decode(self, choice: Sequence[int]) -> Config | None:
        """Return the config at one choice index per dimension, with derived parameters; ``None`` if illegal.

        The choice for an idle parameter does not matter.

        Raises:
            SpaceError: there is not one index per dimension, or one is out of range.
        """
        legal = self._legal()
        values = legal.values(choice)
        return None if legal.complete(values) else self._config(values)

    def encode(self, config: Config) -> tuple[int, ...]:
        """Return one choice index per dimension for ``config``.

        Raises:
            SpaceError: a free parameter is missing or its value is not among the choices.
        """
        return self._legal().encode(config)

    def why_illegal(self, config: Config) -> str | None:
        """Return one sentence that names parameter, value and rule, or ``None`` for a legal config."""
        legal = self._legal()
        try:
            values = legal.values(legal.encode(config))
        except SpaceError as error:
            return str(error)
        return legal.complete(values) or _difference(config, self._config(values))

    def _repr_html_(self) -> str:
        """Return the parameters and constraints as a table, for a notebook."""
        from torchx_cubicml.space.space_html import space_html

        objective = " and ".join(filter(None, (self.objective, self.second_objective)))
        return space_html(self.parameters, constraints=self.constraints, objective=objective, facts=self.facts)

    def __contains__(self, config: Config) -> bool:
        return self.why_illegal(config) is None

    def changers_of_work(self) -> tuple[str, ...]:
        """Return the parameters that may change the work of one optimizer step, as the user calls them.

        Sizes of the model, of a sample, of the batch and of the job, and what such a size is derived from; and those
        that the user marks with ``changes_training``. The factors of a global batch that is kept do not count: the
        micro batch or the accumulation is derived from it and from all other factors that vary.
        """
        varied = [item for item in self.parameters if len(item.choices) != 1 or item.when is not None]
        reads = {item.name: self._reads(item.name) for item in varied}
        factors = [item for item in varied if not item.known_names.isdisjoint(_FACTORS)]
        rests = [item for item in factors if item.derive is not None and item.when is None]
        kept = any({"global_batch_size", *(item.name for item in factors)} <= reads[rest.name] for rest in rests)
        sizes = [item for item in varied if not item.known_names.isdisjoint(_IN_WORK)]
        sources = set[str]().union(*(reads[item.name] for item in sizes if not (kept and item in factors)))
        free = [item for item in varied if item.derive is None]
        return tuple(item.label or item.name for item in free if item.changes_training or item.name in sources)

    def configs(self) -> Iterator[Config]:
        """Stream every legal config of a bound space, always in the same order."""
        return map(self._config_at, self._legal().choices.vectors())

    def size(self, *, limit: int | None = None) -> int:
        """Return the number of legal configs, at most ``limit``; ``limit`` if there are too many to count.

        Raises:
            SpaceError: constraints tie so many choices together that they cannot be counted, and no limit is given.
        """
        return self._legal().choices.size(limit=limit)

    def sample(self, count: int, *, rng: np.random.Generator) -> list[Config]:
        """Return ``count`` legal configs, each drawn uniformly (repeats are possible).

        If constraints tie too many choices together to count them, a draw whose first guesses are all illegal comes
        from a randomised search instead, which is not uniform.

        Raises:
            SpaceError: no config is legal, or none was found in a bounded search.
        """
        return [self._config_at(choice) for choice in self._legal().choices.draw(count, rng)]

    def _config_at(self, choice: Sequence[int]) -> Config:
        legal = self._legal()
        values = legal.values(choice)
        legal.complete(values)
        return self._config(values)

    def _config(self, values: Mapping[str, Value]) -> Config:
        return {parameter.name: values[parameter.name] for parameter in self.parameters}

    def _legal(self) -> LegalConfigs:
        legal = self._legal_cache
        if legal is None:
            legal = self._legal_under([rule.expression for rule in self.in_force.rules])
            object.__setattr__(self, "_legal_cache", legal)  # a cache: depends only on the other fields
        return legal

    def _legal_without_rules(self) -> LegalConfigs:
        return self._legal_under([]) if self.in_force.rules else self._legal()

    def _legal_under(self, implied: Sequence[Expression]) -> LegalConfigs:
        tuned = {item.name for item in self.parameters}
        return LegalConfigs(
            self._free_parameters(),
            derivations=self._derivations(),
            constraints=[*self.constraints, *implied],
            facts={**{name: value for name, value in self.known.items() if name not in tuned}, **self.facts},
        )

    def _reads(self, name: str) -> set[str]:
        """Return a name with all names that its value depends on, directly or through derivations and conditions."""
        reads = {"dp_degree": {*_OF_WORLD, *NOT_DATA_PARALLEL}}
        for item in self.parameters:
            read = (each.names for each in (item.derive, item.when) if each is not None)
            reads[item.name] = set().union(*read)
        found, pending = {name}, [name]
        while pending:
            new = reads.get(pending.pop(), set()) - found
            found |= new
            pending += new
        return found

    def _derivations(self) -> dict[str, Derivation]:
        return {
            parameter.name: self._conditional(parameter, None) or parameter.derive
            for parameter in self.parameters
            if parameter.derive is not None
        }

    def _free_parameters(self) -> list[FreeParameter]:
        free = []
        for parameter in self.parameters:
            if parameter.derive is None:
                blocks = _blocks(parameter, self.facts)
                choices = dividing_choices(parameter, self.parameters, self.facts)
                free.append(FreeParameter(parameter.name, choices, blocks, self._conditional(parameter, blocks)))
        return free

    def _conditional(self, parameter: Parameter, blocks: tuple[tuple[int, ...], ...] | None) -> Conditional | None:
        """Return the condition of a parameter, with its idle value: its default, or the user's own value."""
        if parameter.when is None:
            return None
        idle = parameter.default if parameter.default is not None else self.own.get(parameter.name)
        if idle is None:
            raise SpaceError(
                f"parameters.{parameter.name}: unknown value unless {parameter.when.source}; "
                "set a default, or state it in the command"
            )
        if blocks is not None and not isinstance(idle, tuple):
            idle = (idle,) * sum(map(len, blocks))
        return Conditional(parameter.name, parameter.when, parameter.derive, idle)


def computed_global_batch_size(*, workload: Workload, current: Config) -> int | None:
    """Return micro batch x accumulation x data-parallel degree of a command, ``None`` if one is unknown.

    >>> computed_global_batch_size(workload={"world_size": 8}, current={"micro_batch_size": 4, "tp_degree": 2})
    16
    """
    known = {**workload, **current}
    factors = (
        known.get("micro_batch_size"),
        known.get("gradient_accumulation_steps", 1),
        stated_dp_degree(workload, current),
    )
    counts = [factor for factor in factors if is_count(factor)]
    return math.prod(counts) if len(counts) == len(factors) else None


def implied_values(space: SearchSpace, known: Mapping[str, Value]) -> dict[str, Value]:
    """Return the derived parameters that a command does not state, as far as its known values determine them.

    Raises:
        SpaceError: the known values give no legal value: for example, they do not divide.
    """
    unstated = [item for item in space.parameters if item.binding is None or item.binding.implied]
    implied = {item.name: item.derive for item in unstated if item.derive is not None and item.name not in known}
    values = dict(known)
    degree = data_parallel_degree(values)
    if degree is not None:
        values.setdefault("dp_degree", degree)
    elif "world_size" in implied:
        implied["dp_degree"] = dp_degree_expression([*known, *implied])
    found: dict[str, Value] = {}
    for name, expression in in_dependency_order(implied).items():
        if expression.names <= values.keys():
            values[name] = found[name] = derived_value(name, expression, values)
    declared = {item.name for item in space.parameters}
    return {name: value for name, value in found.items() if name != "dp_degree" or name in declared}


def _with_derived_facts(known: Workload, current: Config, *, tuned: set[str]) -> dict[str, Value]:
    """Return the known facts and those that follow from them; ``dp_degree`` only if no config changes it."""
    facts = dict(known)
    world_size, nnodes, per_node = (facts.get(name) for name in ("world_size", "nnodes", "nproc_per_node"))
    if is_count(world_size) and is_count(nnodes) and per_node is None and world_size % nnodes == 0:
        facts["nproc_per_node"] = world_size // nnodes
    if is_count(world_size) and is_count(per_node) and nnodes is None and world_size % per_node == 0:
        facts["nnodes"] = world_size // per_node
    batch = computed_global_batch_size(workload=facts, current=current)
    if batch is not None:
        facts.setdefault("global_batch_size", batch)
    if tuned & {"world_size", *NOT_DATA_PARALLEL}:
        facts.pop("dp_degree", None)
    else:
        degree = data_parallel_degree(facts)
        facts = {"dp_degree": degree, **facts} if degree is not None else facts
    return facts


def _blocks(parameter: Parameter, facts: Mapping[str, Value]) -> tuple[tuple[int, ...], ...] | None:
    """Return the blocks of per-layer entries that are chosen together; ``None`` for a single value."""
    if parameter.counted_by is None:
        return None
    name = parameter.counted_by
    count = facts.get(name) if isinstance(name, str) else name
    if not is_count(count) or count > MAX_ITEMS:
        known = f"got {count!r}" if count is not None else "it is unknown for this workload"
        key = "per_layer" if parameter.per_table is None else "per_table"
        raise SpaceError(f"parameters.{parameter.name}: {key} = {name!r} must be from 1 to {MAX_ITEMS}; {known}")
    n_blocks = min(parameter.groups or count, count)
    edges = [count * number // n_blocks for number in range(n_blocks + 1)]
    return tuple(tuple(range(start, end)) for start, end in pairwise(edges))


def _difference(config: Config, legal: Config) -> str | None:
    """Return a sentence on the first difference from the legal config of the same free values; ``None`` without one."""
    for name in {**legal, **config}:
        if name not in legal:
            return f"unknown parameter {name}; choose from {', '.join(legal)}"
        if name not in config:
            return f"{name} is missing; with the other values it must be {legal[name]!r}"
        if kind(config[name]) != kind(legal[name]) or config[name] != legal[name]:
            return f"{name} = {config[name]!r:.80} is not legal; with the other values it must be {legal[name]!r:.80}"
    return None
