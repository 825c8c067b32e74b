"""Values in the flags of a script, which another file of the command may say where no flag does."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from torchx_cubicml.launch.bindings.argv import flags_in, positionals
from torchx_cubicml.launch.bindings.config_file import FilePlace
from torchx_cubicml.launch.bindings.flag_place import FlagPlace
from torchx_cubicml.launch.bindings.flag_values import is_stated, read_flag, remove_flag, write_flag
from torchx_cubicml.launch.bindings.spelling import same_value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.launch.bindings.base import Wanted
    from torchx_cubicml.launch.launch import Launch
    from torchx_cubicml.records.trial import Value
    from torchx_cubicml.space import Landing

_FILE = FilePlace()


class ArgumentPlace:
    """A flag in any of its spellings; where it is not typed, the key of a config file that the command names."""

    def says(self, launch: Launch, landing: Landing, wanted: Wanted) -> bool:
        """Whether it is in the command or in the file, or a default is known."""
        if self._is_left_to_file(launch, landing, wanted):
            return _FILE.says(launch, landing, _in_file(landing, wanted))
        place = _flag_place(launch, landing, wanted)
        return place.default is not None or is_stated(launch.script_args, place)

    def read(self, launch: Launch, landing: Landing, wanted: Wanted) -> Value:
        """Return the value that it carries."""
        if self._is_left_to_file(launch, landing, wanted):
            return _FILE.read(launch, landing, _in_file(landing, wanted))
        return read_flag(launch.script_args, _flag_place(launch, landing, wanted))

    def write(self, launch: Launch, landing: Landing, wanted: Wanted, value: Value) -> Launch:
        """Write it in the form that the user chose."""
        place = _flag_place(launch, landing, wanted)
        if self._is_left_to_file(launch, landing, wanted):
            if not landing.flag_counts_more:
                return _FILE.write(launch, landing, wanted, value)
            place = replace(place, default=None, absent=None)  # what the file says is no default any more
        _FILE.refuse_beside_flag(launch, landing, wanted)
        args = write_flag(launch.script_args, place, value)
        return replace(launch, script_args=_with_companions(args, landing, place, value))

    def _is_left_to_file(self, launch: Launch, landing: Landing, wanted: Wanted) -> bool:
        if not landing.file or landing.file_must_leave_open or not _FILE.is_named(launch, landing):
            return False
        return not is_stated(launch.script_args, _flag_place(launch, landing, wanted))


def _in_file(landing: Landing, wanted: Wanted) -> Wanted:
    return replace(wanted, default=None if wanted.default is None else landing.file_default)


def _with_companions(args: tuple[str, ...], landing: Landing, place: FlagPlace, value: Value) -> tuple[str, ...]:
    """Return ``args`` with the flags that must stand beside a value, and without those of other values."""
    wanted = {flag: text for known, beside in landing.companions if same_value(known, value) for flag, text in beside}
    for flag in dict.fromkeys(flag for _, beside in landing.companions for flag, _ in beside):
        beside = FlagPlace(flag=flag, owner=place.owner, other_flags=place.other_flags | {place.flag})
        if flag not in wanted:
            args = remove_flag(args, beside)
        elif not is_stated(args, beside):
            args = write_flag(args, beside, wanted[flag])
    return args


def _flag_place(launch: Launch, landing: Landing, wanted: Wanted) -> FlagPlace:
    elsewhere = _elsewhere(launch.script_args, landing.unless)
    default = None if elsewhere else wanted.default
    unsaid = next((value for value, text in landing.words if not text and same_value(value, default or ())), None)
    return FlagPlace(
        flag=landing.name,
        owner=wanted.owner,
        choices=wanted.choices,
        default=default,
        count=wanted.count,
        other_flags=wanted.flags - {landing.name, *landing.aliases},
        aliases=landing.aliases,
        words=landing.words,
        bare=landing.bare,
        absent=default if wanted.may_be_idle else unsaid,
        elsewhere=elsewhere,
    )


def _elsewhere(args: Sequence[str], patterns: Sequence[str]) -> str:
    """Return the flag or file in a command that brings other defaults, as one of ``patterns`` says."""
    words = [*flags_in(args), *positionals(args)]
    return next((word for word in words if any(fnmatchcase(word, pattern) for pattern in patterns)), "")
