"""Records of a trainer's table: which of its flags bears which standard name.

To add a trainer, write one module beside this one and name it in ``TRAINERS`` of ``space/trainers/__init__.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchx_cubicml.records.values import Scalar

AccumulationScope: TypeAlias = Literal["per rank", "whole job", "implied"]
"""Scope of a trainer's accumulation count.

Micro batches per step of each data-parallel rank, or of all of them together; ``implied`` if the trainer has no such
flag and accumulates until its given global batch is full.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerFlag:
    """One flag of a trainer, or one key of a config file of its own.

    Args:
        flag: the flag as typed, with a ``=`` at its end if the value must follow at once; empty if only a file holds
            the value.
        choices: legal values for ``"auto"`` in a space file; empty if the space file must list them.
        is_switch: whether its values are true and false although neither choices nor a default show it.
        default: the trainer's value without the flag; ``None`` if the flag is required or other files may set it.
        words: values and their texts, where these differ; an empty text means to leave the flag out.
        bare: value of the flag without a text; ``None`` if it has none, or is a switch.
        companions: for a value, flags that must stand beside it, with their values.
        when: condition under which it counts; empty for always.
        file: flag that names a JSON, YAML or TOML file, which holds the value if ``flag`` is not typed.
        key: key of the value in that file, with dots between its names.
        file_default: the trainer's value if the file has none; ``None`` if the file must have one.
        file_words: values and their spellings in the file, where these differ.
        flag_overrides_file: whether ``flag`` wins over the file, so that another value is written as a flag.
        file_must_be_auto: whether the file may hold nothing but ``auto`` if ``flag`` is to be changed.
        implied: whether an absent value follows from the others.
        aliases: names of the same flag in other releases; one that is typed is read and written.
        takes_list: whether several words may follow; together, with blanks between, they are one value.
        of_launcher: whether it is an option of the launcher that the trainer comes with.
    """

    flag: str = ""
    choices: tuple[Scalar, ...] = ()
    is_switch: bool = False
    default: Scalar | None = None
    words: tuple[tuple[Scalar, str], ...] = ()
    bare: Scalar | None = None
    companions: tuple[tuple[Scalar, tuple[tuple[str, str], ...]], ...] = ()
    when: str = ""
    file: str = ""
    key: str = ""
    file_default: Scalar | None = None
    file_words: tuple[tuple[Scalar, str], ...] = ()
    flag_overrides_file: bool = False
    file_must_be_auto: bool = False
    implied: bool = False
    aliases: tuple[str, ...] = ()
    takes_list: bool = False
    of_launcher: bool = False

    @property
    def samples(self) -> tuple[Scalar, ...]:
        """Return some legal values of the flag, which show their kind; empty where nothing is known."""
        known = dict.fromkeys([*self.choices, *(value for value, _ in (*self.words, *self.file_words))])
        defaults = [value for value in (self.default, self.file_default) if value is not None]
        if self.is_switch or any(isinstance(value, bool) for value in (*known, *defaults)):
            return (False, True)
        return tuple(known) or tuple(dict.fromkeys(defaults))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerRelease:
    """Release of a trainer, whose own argument checks the rules of its table follow.

    Args:
        version: version of the release; a commit if the trainer has no releases.
        checks: the checks, each as file and function in the sources of the release.
    """

    version: str
    checks: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
    """A trainer, with its flags by standard name.

    Args:
        name: its name in a space file.
        flags: standard name of a parameter or of a workload fact -> flag.
        accumulation: scope of its accumulation count.
        release: release that ``rules`` follow.
        rules: name -> condition that a config must meet for the trainer to start, in words and as an expression; it
            counts where its names are known.
        exempt: names of the rules of every job that are not true of this trainer.
        constraints: conditions that a config must meet in any case, whose names must be known.
        other_defaults: patterns of flags and of files in a command that set other defaults than the table's.
        both_dashes: whether a flag among ``marks`` can be typed with ``-`` in the place of ``_``.
        programs: regular expressions of its scripts and modules.
        source: text by which its script is recognised; empty if it has none.
        marks: sets of flags: a command with all flags of one set belongs to this trainer.
        outputs: flags of outputs that it writes even if the command does not name them.
    """

    name: str
    flags: Mapping[str, TrainerFlag]
    accumulation: AccumulationScope
    release: TrainerRelease
    rules: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    exempt: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    other_defaults: tuple[str, ...] = ()
    both_dashes: bool = False
    programs: tuple[str, ...] = ()
    source: str = ""
    marks: tuple[frozenset[str], ...] = ()
    outputs: tuple[str, ...] = ()

    def names(self, *, with_values: bool) -> tuple[str, ...]:
        """Return the names in its table for which ``"auto"`` has values or is derived, or the other ones."""
        has_values = {
            name: bool(flag.choices) or name == "gradient_accumulation_steps" for name, flag in self.flags.items()
        }
        return tuple(name for name, has in has_values.items() if has == with_values)
