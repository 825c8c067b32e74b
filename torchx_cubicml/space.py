"""The search space: parameters with their legal values, constraints between them, and where each lands in a command.

A space read from a file is bound to one workload before it is searched (``SearchSpace.bind``): only then is it known
how many layers a per-layer parameter has and what the derived parameters are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import numpy as np

    from torchx_cubicml.expression import Expression
    from torchx_cubicml.trial import Config, Scalar, Value, Workload


class LandingKind(StrEnum):
    """Kinds of places in a command where a value is read and written."""

    FLAG = "flag"
    ENV = "env"


@dataclass(frozen=True, slots=True, kw_only=True)
class Landing:
    """Where a parameter or a workload fact stands in a command: a flag with its dashes, or an environment variable."""

    kind: LandingKind
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One tunable knob.

    Args:
        name: standard name where there is one.
        choices: legal values in the order of the file, of one entry for a per-layer parameter; empty where derived.
        per_layer: name of the fact that counts its entries, or the count; ``None`` for a single value.
        groups: blocks of neighbouring layers that are tuned alike; ``None`` tunes each layer.
        derive: expression that gives the value; ``None`` for a free parameter.
        landing: its place in the command; ``None`` for spaces used as a library.
        default: what the script does where the command does not say; ``None`` where the command must.
        observe: standard name whose observed value stands for the requested one in training rows.
    """

    name: str
    choices: tuple[Scalar, ...] = ()
    per_layer: str | int | None = None
    groups: int | None = None
    derive: Expression | None = None
    landing: Landing | None = None
    default: Value | None = None
    observe: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadFact:
    """A fact of the workload that the file declares: read from the command, or stated.

    Args:
        name: standard name where there is one.
        landing: its place in the command; ``None`` where stated.
        value: stated value, or what the script does where the command does not say.
    """

    name: str
    landing: Landing | None = None
    value: Value | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneChanges:
    """What a profiling launch changes besides its config; ``{scratch}`` and ``{launch_id}`` are filled in."""

    args: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Dimension:
    """One free choice of a bound space: a parameter, or one entry or group of a per-layer parameter.

    Args:
        parameter: name of the parameter.
        positions: entries of the value that it sets; empty for a single value.
        choices: legal values.
    """

    parameter: str
    positions: tuple[int, ...]
    choices: tuple[Scalar, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """All legal configs.

    Args:
        parameters: free and derived ones, in the order of the file.
        constraints: predicates that every legal config meets.
        workload: facts that the file declares.
        objective: name of the throughput maximised.
        tune: what a profiling launch changes besides its config.
        facts: what ``bind`` fixed: the workload's facts, ``world_size``, ``global_batch_size``...
    """

    parameters: tuple[Parameter, ...]
    constraints: tuple[Expression, ...] = ()
    workload: tuple[WorkloadFact, ...] = ()
    objective: str = "tokens_per_second"
    tune: TuneChanges = field(default_factory=TuneChanges)
    facts: Mapping[str, Value] = field(default_factory=dict)

    @classmethod
    def from_toml(cls, path: str | Path) -> Self:
        """Return the space that a file describes.

        Raises:
            SpaceError: the file cannot be read or breaks a rule; the text names key, value, rule and legal values.
        """
        raise NotImplementedError

    def bind(self, *, workload: Workload, current: Config) -> Self:
        """Return this space for one workload: facts fixed, per-layer sizes and ``global_batch_size`` known.

        Args:
            workload: facts, with ``world_size``.
            current: the user's own config, from which ``global_batch_size`` is computed; may be empty.

        Raises:
            SpaceError: a fact is missing, a derivation is circular, or no config is legal.
        """
        raise NotImplementedError

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """The free choices of a bound space."""
        raise NotImplementedError

    def decode(self, choice: Sequence[int]) -> Config | None:
        """Return the config, derived parameters included, at one choice index per dimension; ``None`` where illegal."""
        raise NotImplementedError

    def encode(self, config: Config) -> tuple[int, ...]:
        """Return the choice index per dimension of ``config``.

        Raises:
            SpaceError: a free parameter is missing or its value is not among the choices.
        """
        raise NotImplementedError

    def why_illegal(self, config: Config) -> str | None:
        """Return one sentence that names parameter, value and rule, or ``None`` for a legal config."""
        raise NotImplementedError

    def __contains__(self, config: Config) -> bool:
        return self.why_illegal(config) is None

    def configs(self) -> Iterator[Config]:
        """Stream every legal config of a bound space, in the order of the choices."""
        raise NotImplementedError

    def size(self, *, limit: int | None = None) -> int:
        """Return how many configs are legal, counting no further than ``limit``."""
        raise NotImplementedError

    def sample(self, count: int, *, rng: np.random.Generator) -> list[Config]:
        """Return ``count`` legal configs, each drawn uniformly (repeats are possible)."""
        raise NotImplementedError
