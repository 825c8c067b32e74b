"""Binding to keys of config files that the script reads: JSON, YAML or TOML, named by an argument or a variable.

Values are read from the file on this machine. A written value stays in the launch until the job patches its own copy:
no file of the user is ever changed.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import TYPE_CHECKING

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.launch.bindings.argv import find_flag, looks_like_value
from torchx_cubicml.launch.config_text import MISSING, is_document, parse_document, value_at, with_values
from torchx_cubicml.records.contract import FilePatch
from torchx_cubicml.space.spelling import listed, read_scalar, same_value, switch_value
from torchx_cubicml.user_files import read_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchx_cubicml.launch.bindings.base import BindingQuery
    from torchx_cubicml.launch.config_text import Document
    from torchx_cubicml.launch.launch import Launch
    from torchx_cubicml.records.values import Scalar, Value
    from torchx_cubicml.space import Binding

LEFT_OPEN = "auto"  # DeepSpeed's word for: as the flags of the script set it


@dataclass(frozen=True, slots=True)
class NamedFile:
    """A config file that a command names.

    Args:
        path: path as typed.
        argument: index of the argument that ends in the path; ``None`` if a variable holds it.
    """

    path: str
    argument: int | None = None


class ConfigFileBinding:
    """Binding to a key in a config file."""

    def is_named(self, launch: Launch, binding: Binding) -> bool:
        """Return whether the command names the file, and its format is supported."""
        found = _named(launch, binding.file)
        return len(found) > 0 and is_document(found[-1].path)

    def has_key(self, launch: Launch, binding: Binding) -> bool:
        """Return whether the file holds a value at the key.

        Raises:
            LaunchError: the file cannot be read here.
        """
        return _stated_value(launch, binding) is not None

    def refuse_beside_flag(self, launch: Launch, binding: Binding, query: BindingQuery) -> None:
        """Check that the file does not set the value that a flag is about to set.

        Raises:
            LaunchError: the file sets a value of its own, which would contradict the flag.
        """
        if not binding.file_must_be_auto or not self.is_named(launch, binding):
            return
        stated = _stated_value(launch, binding)
        if stated not in {None, LEFT_OPEN}:
            raise LaunchError(
                f"flag {binding.name} of {query.owner} cannot be changed: it must agree with "
                f"{_where(launch, binding)}, which is {stated!r:.60}; write {LEFT_OPEN!r} there"
            )

    def says(self, launch: Launch, binding: Binding, query: BindingQuery) -> bool:
        """Return whether the file holds a value, or a default is known."""
        if not self.is_named(launch, binding):
            return False
        return query.default is not None or self.has_key(launch, binding)

    def read(self, launch: Launch, binding: Binding, query: BindingQuery) -> Value:
        """Return the value at the key."""
        stated = _stated_value(launch, binding)
        if stated is None:
            if query.default is not None:
                return query.default
            raise LaunchError(f"{_where(launch, binding)} of {query.owner} is missing and has no default")
        entries = [
            _value(entry, launch, binding, query) for entry in (stated if isinstance(stated, list) else [stated])
        ]
        if query.count is None:
            if isinstance(stated, list):
                raise LaunchError(f"{_where(launch, binding)} of {query.owner} is a list; it must be one value")
            return entries[0]
        if len(entries) not in {1, query.count}:
            raise LaunchError(
                f"{_where(launch, binding)} of {query.owner} has {len(entries)} entries; "
                f"it must have 1 or {query.count}"
            )
        return tuple(entries * query.count if len(entries) == 1 else entries)

    def write(self, launch: Launch, binding: Binding, query: BindingQuery, value: Value) -> Launch:
        """Return the launch with the value set at the key in the job's copy."""
        before = launch.files.get(binding.file, {})
        changes = checked_keys(launch, binding.file, {**before, binding.key: _file_value(value, binding)})
        return replace(launch, files={**launch.files, binding.file: changes})


def checked_keys(
    launch: Launch, locator: str, changes: Mapping[tuple[str, ...], Value]
) -> Mapping[tuple[str, ...], Value]:
    """Return the changes of a config file, after a trial edit here so that they cannot fail in the job.

    Raises:
        LaunchError: the file is not on this machine, or a key cannot be set.
    """
    path = _file_of(launch, locator).path
    with_values(read_text(path), changes, path=path)
    return changes


def patches_of(launch: Launch) -> tuple[FilePatch, ...]:
    """Return the patches that the job applies to its copies of config files."""
    patches = []
    for locator, changes in launch.files.items():
        file = _file_of(launch, locator)
        patches.append(
            FilePatch(
                path=file.path,
                argument=file.argument,
                variable=locator.removeprefix("$") if file.argument is None else "",
                digest=hashlib.sha256(read_text(file.path).encode()).hexdigest(),
                values=tuple(changes.items()),
            )
        )
    return tuple(patches)


def _named(launch: Launch, locator: str) -> list[NamedFile]:
    """Return the files in a command that ``locator`` matches: ``$VARIABLE``, a flag, or a path with ``*``."""
    if locator.startswith("$"):
        path = launch.env.get(locator[1:], "")
        return [NamedFile(path)] if path else []
    args = launch.script_args
    if locator.startswith("-") or locator.endswith("="):
        found = [item for item in find_flag(args, locator, is_value=looks_like_value) if item.texts]
        return [NamedFile(item.texts[-1], item.stop - 1) for item in found]
    words = [(index, word.rpartition("=")[2]) for index, word in enumerate(args)]
    return [NamedFile(path, index) for index, path in words if path == locator or fnmatchcase(path, locator)]


def _file_of(launch: Launch, locator: str) -> NamedFile:
    found = _named(launch, locator)
    if len(found) != 1:
        problem = "more than one file" if found else "no file"
        raise LaunchError(f"{locator} must name one config file, but it names {problem} in the command")
    return found[0]


def _stated_value(launch: Launch, binding: Binding) -> object:
    """Return the value at the key, as changed by the launch; ``None`` without one."""
    changed = launch.files.get(binding.file, {})
    if binding.key in changed:
        value = changed[binding.key]
        return list(value) if isinstance(value, tuple) else value
    stated = value_at(_document(_file_of(launch, binding.file).path), binding.key)
    return None if stated is MISSING else stated


def _value(stated: object, launch: Launch, binding: Binding, query: BindingQuery) -> Scalar:
    for known, text in binding.file_words:
        if text and same_value(_literal(text), stated if isinstance(stated, bool | int | float | str) else ()):
            return known
    where = _where(launch, binding)
    if isinstance(stated, str) and not (switch_value(stated) is not None and bool in map(type, query.choices)):
        return read_scalar(stated, query.choices, where=where)  # a program may take the text "no" for true
    if not isinstance(stated, bool | int | float | str):
        raise LaunchError(f"{where} of {query.owner} is {stated!r:.60}; it must be one value or a list of values")
    if query.choices and not any(_is_same_kind(stated, choice) for choice in query.choices):
        raise LaunchError(f"{where} of {query.owner} is {stated!r:.60}; choose from {listed(query.choices)}")
    return next((choice for choice in query.choices if same_value(choice, stated)), stated)


def _is_same_kind(stated: object, choice: Scalar) -> bool:
    return isinstance(stated, bool) == isinstance(choice, bool) and isinstance(choice, bool | int | float)


def _file_value(value: Value, binding: Binding) -> Value:
    """Return a value in the file's spelling."""
    if isinstance(value, tuple):
        spelled = [_file_value(entry, binding) for entry in value]
        return tuple(entry for entry in spelled if not isinstance(entry, tuple))
    return next((_literal(text) for known, text in binding.file_words if text and same_value(known, value)), value)


def _literal(text: str) -> Scalar:
    """Return the number or boolean that a trainer's word spells in a file, else the word."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, bool | int | float) else text


def _where(launch: Launch, binding: Binding) -> str:
    found = _named(launch, binding.file)
    return f"{'.'.join(binding.key)} in {found[-1].path if found else binding.file}"


def _document(path: str) -> Document:
    return _parsed(read_text(path), path)


@lru_cache(maxsize=8)
def _parsed(text: str, path: str) -> Document:
    return parse_document(text, path=path)
