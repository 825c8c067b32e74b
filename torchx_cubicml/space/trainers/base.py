"""What a trainer's table says: records, no logic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchx_cubicml.records.trial import Scalar

AccumulationScope: TypeAlias = Literal["per rank", "whole job", "implied"]
"""What a trainer's accumulation counts.

Micro batches per step of each data-parallel rank, or of all of them together; ``implied`` where it has no such flag and
accumulates until the global batch that it is given is full.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerFlag:
    """One flag of a trainer, or one key of a config file of its own.

    Args:
        flag: as it is typed, with a ``=`` at its end where the value must follow at once; empty where only a file says
            the value.
        choices: legal values that are tried where a space file says ``"auto"``; empty where it must list them.
        default: what the trainer does without the flag; ``None`` where it must be there or other files may say.
        words: values and the texts that say them, where these differ; an empty text is said by leaving the flag out.
        bare: value that the flag says without one; ``None`` where it says none, or true.
        companions: for a value, flags that must stand beside it, with their values.
        when: condition under which it counts; empty for always.
        file: flag that names a JSON, YAML or TOML file which holds the value where ``flag`` is not typed.
        key: of the value in that file, with dots between its names.
        file_default: what the trainer does where the file does not say; ``None`` where it must.
        file_words: values and what says them in the file, where these differ.
        flag_counts_more: whether ``flag`` wins over the file, so that another value is written as a flag.
        file_must_leave_open: whether the file may say nothing but ``auto`` where ``flag`` is to be changed.
        implied: whether a value that is nowhere follows from the others.
    """

    flag: str = ""
    choices: tuple[Scalar, ...] = ()
    default: Scalar | None = None
    words: tuple[tuple[Scalar, str], ...] = ()
    bare: Scalar | None = None
    companions: tuple[tuple[Scalar, tuple[tuple[str, str], ...]], ...] = ()
    when: str = ""
    file: str = ""
    key: str = ""
    file_default: Scalar | None = None
    file_words: tuple[tuple[Scalar, str], ...] = ()
    flag_counts_more: bool = False
    file_must_leave_open: bool = False
    implied: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
    """A trainer: which of its flags means which standard name.

    Args:
        name: as a space file says it.
        flags: standard name of a parameter or of a workload fact -> flag.
        accumulation: what its accumulation counts.
        constraints: what it demands of a config.
        other_defaults: patterns of flags and of files in a command that bring other defaults than the table's.
        both_dashes: whether its flags can be typed with ``-`` in the place of ``_``.
        programs: patterns of the scripts and modules that are it, as regular expressions.
        source: text by which its script is known; empty where it has none.
        marks: sets of flags: a command that has all of one set is its own.
        outputs: flags of what it writes even where the command does not say so.
    """

    name: str
    flags: Mapping[str, TrainerFlag]
    accumulation: AccumulationScope
    constraints: tuple[str, ...] = ()
    other_defaults: tuple[str, ...] = ()
    both_dashes: bool = False
    programs: tuple[str, ...] = ()
    source: str = ""
    marks: tuple[frozenset[str], ...] = ()
    outputs: tuple[str, ...] = ()
