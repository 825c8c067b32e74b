"""Records of a declared name: a parameter or a workload fact, and its binding in a command."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from torchx_cubicml.errors import SpaceError
from torchx_cubicml.facts.hook_registry import hook_spec
from torchx_cubicml.records.standard_names import STANDARD_PARAMETERS, standard_flag_name
from torchx_cubicml.space.arithmetic import kind
from torchx_cubicml.space.constraints import is_count

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Scalar, Value
    from torchx_cubicml.space.expression import Expression


class BindingKind(StrEnum):
    """Kinds of bindings: the keys of a space file that name the place of a value in a command."""

    FLAG = "flag"
    ENV = "env"
    HOOK = "hook"
    FILE = "file"
    TORCHRUN = "torchrun"
    COMPONENT = "component"
    SCHEDULER = "scheduler"


OF_MACHINE = frozenset({BindingKind.COMPONENT, BindingKind.SCHEDULER})
"""Kinds of bindings to the resources of a job: with another value it may run on another machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """Binding of a parameter or a workload fact to its place in a command.

    Args:
        kind: kind of place, as a space file names it.
        name: a flag with its dashes, with a ``=`` at its end if the value must follow it at once (``--x=4``,
            ``section.key=4``); an environment variable; a hook; file and key in words; or the name of a size that
            torchrun gives the job.
        aliases: other spellings of the same flag.
        words: values and their texts in the command, where these differ; an empty text means to leave the flag out.
        bare: value of the flag without a text; ``None`` if it has none, or is a switch.
        companions: for a value, flags that must stand beside it, with their values.
        unless: patterns of flags and files in a command that set other defaults, so that an absent flag does not mean
            the default.
        file: argument or variable that names a config file with the value: ``$VARIABLE``, a flag, or a path in which
            ``*`` matches anything; empty without one. Beside a flag, the file counts if the flag is absent.
        key: key of the value in that file, outermost name first.
        file_default: the script's value if neither a flag nor the file states one.
        file_words: values and their spellings in the file, where these differ.
        flag_overrides_file: whether a flag that is added beside the file wins over it; else the file is changed.
        file_must_be_auto: whether a value in the file, other than ``auto``, would contradict the flag.
        implied: whether an absent value follows from the parameter's expression, before the default counts.
        takes_list: whether several words may follow the flag; together, with blanks between, they are one value.
        of_launcher: whether flag and file are options of the launcher, and not arguments of the program.
        implied_by: values at the place that stand for the expression's value too, such as -1 for the remaining ranks.
    """

    kind: str
    name: str
    aliases: tuple[str, ...] = ()
    words: tuple[tuple[Scalar, str], ...] = ()
    bare: Scalar | None = None
    companions: tuple[tuple[Scalar, tuple[tuple[str, str], ...]], ...] = ()
    unless: tuple[str, ...] = ()
    file: str = ""
    key: tuple[str, ...] = ()
    file_default: Scalar | None = None
    file_words: tuple[tuple[Scalar, str], ...] = ()
    flag_overrides_file: bool = False
    file_must_be_auto: bool = False
    implied: bool = False
    takes_list: bool = False
    of_launcher: bool = False
    implied_by: tuple[Scalar, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A tunable parameter.

    Args:
        name: standard name where there is one.
        choices: legal values in the order of the file, of one entry for a per-layer parameter; empty if derived.
        per_layer: name of the fact that counts its entries, or the count; ``None`` where it has no value per layer.
        per_table: likewise, of a value per embedding table.
        groups: number of blocks of neighbouring layers or tables that are tuned alike; ``None`` tunes each.
        derive: expression of the value; ``None`` for a free parameter.
        when: condition under which it counts; else it has its default or, without one, the user's own value.
        binding: its place in the command; ``None`` if it follows from the others, and in spaces used as a library.
        default: the script's value if the command states none; ``None`` if the command must state one.
        observe: standard name whose observed value replaces the requested one in training rows; ``None``: its own
            name, where that is standard; empty: none.
        changes_training: whether a launch or a tune may change it although that changes what is trained.
        label: its name in the space file, where that is not the standard name; empty otherwise.
        was: former names, under which earlier launches recorded it.
        divides: name of the size that each choice must divide, so that a bound space has no other choices; empty
            without one.
    """

    name: str
    choices: tuple[Scalar, ...] = ()
    per_layer: str | int | None = None
    per_table: str | int | None = None
    groups: int | None = None
    derive: Expression | None = None
    when: Expression | None = None
    binding: Binding | None = None
    default: Value | None = None
    observe: str | None = None
    changes_training: bool = False
    label: str = ""
    was: tuple[str, ...] = ()
    divides: str = ""

    @property
    def counted_by(self) -> str | int | None:
        """Name of the fact that counts its entries, or the count; ``None`` for a single value."""
        return self.per_layer if self.per_table is None else self.per_table

    @property
    def observed_as(self) -> str:
        """Name of the fact under which the parameter is observed; empty if it is not."""
        if self.observe is not None:
            return self.observe
        return self.name if self.name in STANDARD_PARAMETERS else ""

    @property
    def known_names(self) -> frozenset[str]:
        """Standard names by which it may be known: its own, what it is observed as, and those of its flags or hook."""
        binding = self.binding
        flags = [binding.name, *binding.aliases, *binding.key] if binding is not None else []
        if binding is not None and binding.kind == BindingKind.HOOK:
            flags += filter(None, [hook_spec(binding.name).fact])
        return frozenset({self.name, self.observed_as, *map(standard_flag_name, (self.name, *flags))})

    def __post_init__(self) -> None:
        where = f"parameters.{self.name}"
        if (self.derive is None) != bool(self.choices):
            raise SpaceError(f"{where}: needs either choices or derive, not both")
        kinds = sorted({kind(choice) for choice in self.choices})
        if len(kinds) > 1:
            raise SpaceError(f"{where}: choices must be of one kind, got {' and '.join(kinds)}")
        repeated = [choice for choice, count in Counter(self.choices).items() if count > 1]
        if repeated:
            raise SpaceError(f"{where}: choices must be distinct, got {repeated[0]!r:.80} more than once")
        if self.per_layer is not None and self.per_table is not None:
            raise SpaceError(f"{where}: has one value per layer or per table: needs one of per_layer, per_table")
        if self.groups is not None and (self.counted_by is None or not is_count(self.groups)):
            got = f"got {self.groups!r}"
            raise SpaceError(f"{where}: groups must be a whole number above 0 and needs per_layer or per_table, {got}")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadFact:
    """A fact of the workload that the file declares: read from the command, or stated.

    Args:
        name: standard name where there is one.
        binding: its place in the command; ``None`` if stated.
        value: stated value, or the script's value if the command states none.
        optional: whether it is left out if neither the command nor ``value`` states it.
    """

    name: str
    binding: Binding | None = None
    value: Value | None = None
    optional: bool = False
