"""Settings of a command before its launch: values of its arguments and config files, each with where it was read."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Self

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.facts.named_places import NamedPlace, place_of
from torchx_cubicml.launch.command_facts.source_literals import bare_name, module_constants
from torchx_cubicml.launch.config_text import flat_keys, is_document, parse_document
from torchx_cubicml.records.argument_words import argument_words, names_as_typed
from torchx_cubicml.space.spelling import number
from torchx_cubicml.user_files import read_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from torchx_cubicml.launch.launch import Launch
    from torchx_cubicml.records.values import Scalar

_WORDS: Mapping[str, bool] = {"true": True, "false": False}
_POSITION = re.compile(r"argument \d+")
_WRITTEN = frozenset({NamedPlace.OUTPUT, NamedPlace.LABEL})  # an earlier result there is no setting
_MOST_KEYS = 2000  # of one file


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Value that something in or beside the command states.

    Args:
        value: number, truth value or text; a tuple for several.
        source: where it was read, for people, such as ``--n_layer`` or ``model.n_layer in gpt.toml``.
        is_assumed: whether it holds only if nothing unseen changes it, as a default in the source may be changed.
    """

    value: Scalar | tuple[Scalar, ...]
    source: str
    is_assumed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedSettings:
    """Settings by their names: lower case, without leading dashes, underscores for hyphens; dots between sections.

    Args:
        arguments: of the program, the last occurrence of each; ``key=value`` arguments too.
        files: of the config files that the command names; those named later win.
        paths: of these files.
    """

    arguments: Mapping[str, Setting] = field(default_factory=dict)
    files: Mapping[str, Setting] = field(default_factory=dict)
    paths: tuple[Path, ...] = ()

    @classmethod
    def of(cls, launch: Launch) -> Self:
        """Read the arguments of a launch and the config files that they name; a file that cannot be read is left out.

        >>> from torchx_cubicml.launch.launch import Launch
        >>> stated = StatedSettings.of(Launch(program="x.py", script_args=("--n-layer=4", "--compile", "model.dim=8")))
        >>> {name: setting.value for name, setting in stated.arguments.items()}
        {'n_layer': 4, 'compile': True, 'model.dim': 8}
        """
        arguments: dict[str, Setting] = {}
        files: dict[str, Setting] = {}
        paths = []
        names = names_as_typed(launch.script_args)
        for name, text in (argument_words(launch.script_args) | _last_values(launch.script_args)).items():
            is_read = (is_document(text) or text.endswith(".py")) and place_of(name, text) not in _WRITTEN
            path = Path(text) if is_read else None
            found = dict(_file_settings(path)) if path is not None else {}
            if found and path is not None:
                paths.append(path)
                files |= found
            if _POSITION.fullmatch(name):
                # An earlier argument gives way to a Python file of other values, as in nanoGPT.
                arguments = {each: value for each, value in arguments.items() if each not in found}
                continue
            plain = bare_name(name)
            typed = names.get(name, name).rstrip("=")
            if re.match(r"no_|.*\.no_", plain) and not text:
                arguments[plain.replace("no_", "", 1)] = Setting(value=False, source=typed)
            arguments[plain] = Setting(value=typed_value(text) if text else True, source=typed)
        arguments |= _pairs(launch.script_args)
        return cls(arguments=arguments, files=files, paths=tuple(paths))

    def with_defaults(self, paths: Iterable[Path]) -> Self:
        """Return the settings with those of further files, which give way to all others."""
        found = {name: setting for path in paths for name, setting in _file_settings(path)}
        return replace(self, files={**found, **self.files}, paths=(*self.paths, *paths))

    def with_full_names(self, flags: Iterable[str], short: Mapping[str, str]) -> Self:
        """Return the settings with those of short and abbreviated flags under their full names too, as argparse has it.

        Args:
            flags: that the program adds, without dashes.
            short: short flag -> long one, such as ``{"-l": "n_layer"}``.

        >>> from torchx_cubicml.launch.launch import Launch
        >>> stated = StatedSettings.of(Launch(program="x.py", script_args=("-l", "4", "--n_he=2")))
        >>> full = stated.with_full_names(["n_layer", "n_head"], {"-l": "n_layer"})
        >>> full.arguments["n_layer"].value, full.arguments["n_head"].value
        (4, 2)
        """
        known, found = frozenset(flags), dict(self.arguments)
        for name, setting in self.arguments.items():
            typed = setting.source
            if typed.startswith("--"):
                longer = [flag for flag in known if flag.startswith(name)] if name not in known else []
                found |= {longer[0]: setting} if len(longer) == 1 and longer[0] not in found else {}
            elif typed in short:
                found[short[typed]] = setting
            elif typed[:2] in short and typed[2:]:  # such as ``-l4``
                found[short[typed[:2]]] = replace(setting, value=typed_value(typed[2:].removeprefix("=")))
        return replace(self, arguments=found)

    def find(self, *names: str) -> Setting | None:
        """Return the setting of the first of ``names`` that the arguments state, else of the first in the files."""
        for table in (self.arguments, self.files):
            for name in names:
                if name in table:
                    return table[name]
        return None


def _pairs(arguments: Sequence[str]) -> dict[str, Setting]:
    """Return the flags whose value is a list of pairs, which would else pass for an argument of its own.

    >>> _pairs(["--config_overrides", "n_layer=2,n_embd=8", "--compile", "model.dim=8"])["config_overrides"].value
    'n_layer=2,n_embd=8'
    """
    found = {}
    for flag, value in pairwise(arguments):
        if flag.startswith("--") and flag.endswith(("overrides", "kwargs")) and "=" in value[1:]:
            found[bare_name(flag)] = Setting(value=value, source=flag)
    return found


def _last_values(arguments: Sequence[str]) -> dict[str, str]:
    """Return the values of flags that are given again, by their last occurrence, or that another argument follows.

    >>> _last_values(["--depth=6", "--depth", "3", "--width", "8", "gpt.yaml", "--sizes", "1", "2"])
    {'--depth': '3', '--width': '8'}
    """
    joined = argument_words(arguments)
    found = {}
    for index, word in enumerate(arguments):
        name = next(iter(argument_words([word])), "")
        if name.startswith("-") and " " in joined.get(name, ""):
            first, *others = argument_words(arguments[index:])[name].split(" ")
            is_value = isinstance(typed_value(first), int | float) and isinstance(typed_value((others or [""])[0]), str)
            found[name] = first if is_value else " ".join([first, *others])
    return {name: value for name, value in found.items() if value != joined[name]}


def read_document(path: Path) -> dict[str, object]:
    """Return the content of a JSON, TOML or YAML file; empty if it cannot be read."""
    try:
        document = parse_document(read_text(path), path=str(path))
    except LaunchError:
        return {}
    return {str(name): value for name, value in document.items()}


def _file_settings(path: Path) -> Iterator[tuple[str, Setting]]:
    if path.suffix == ".py":
        for name, constant in module_constants(path).items():
            yield bare_name(name), Setting(value=constant, source=f"{name} in {path}")
        return
    for count, (key, value) in enumerate(flat_keys(read_document(path))):
        if count >= _MOST_KEYS:
            return
        if isinstance(value, list):
            entries = tuple(each for each in value if isinstance(each, int | float | str))
            if len(entries) == len(value):
                yield bare_name(key), Setting(value=entries, source=f"{key} in {path}")
        elif isinstance(value, int | float | str):
            yield bare_name(key), Setting(value=value, source=f"{key} in {path}")


def typed_value(text: str) -> Scalar | tuple[Scalar, ...]:
    """Return the value that a text spells.

    >>> [typed_value(text) for text in ("12", "1e-3", "True", "bf16", "512-256")]
    [12, 0.001, True, 'bf16', '512-256']
    """
    value = number(text)
    return _WORDS.get(text.lower(), text if value is None else value)
