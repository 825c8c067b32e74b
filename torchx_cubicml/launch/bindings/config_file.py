"""Values at keys of config files that the script reads: JSON, YAML or TOML, named by an argument or a variable.

They are read where the file is at hand. What is written stands in the launch until its job patches a copy of its own:
no file of the user is ever changed.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.launch.bindings.argv import find_flag, looks_like_value
from torchx_cubicml.launch.bindings.spelling import read_scalar, same_value
from torchx_cubicml.launch.config_text import MAX_BYTES, MISSING, is_document, parse_document, value_at, with_values
from torchx_cubicml.records.contract import FilePatch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchx_cubicml.launch.bindings.base import BindingQuery
    from torchx_cubicml.launch.config_text import Document
    from torchx_cubicml.launch.launch import Launch
    from torchx_cubicml.records.trial import Scalar, Value
    from torchx_cubicml.space import Binding

LEFT_OPEN = "auto"  # DeepSpeed's word for: as the flags of the script say


@dataclass(frozen=True, slots=True)
class NamedFile:
    """A file as a command names it.

    Args:
        path: as typed.
        argument: position of the argument that ends in it; ``None`` where a variable holds it.
    """

    path: str
    argument: int | None = None


class ConfigFileBinding:
    """A key in a config file."""

    def is_named(self, launch: Launch, binding: Binding) -> bool:
        """Whether the command names the file, and it is one with keys."""
        found = _named(launch, binding.file)
        return len(found) > 0 and is_document(found[-1].path)

    def has_key(self, launch: Launch, binding: Binding) -> bool:
        """Whether the file holds a value at the key.

        Raises:
            LaunchError: the file cannot be read here.
        """
        return _said(launch, binding) is not None

    def refuse_beside_flag(self, launch: Launch, binding: Binding, wanted: BindingQuery) -> None:
        """Check that the file leaves open what a flag is about to say.

        Raises:
            LaunchError: it says a value of its own, which would contradict the flag.
        """
        if not binding.file_must_leave_open or not self.is_named(launch, binding):
            return
        said = _said(launch, binding)
        if said not in {None, LEFT_OPEN}:
            raise LaunchError(
                f"flag {binding.name} of {wanted.owner} cannot be changed: {_at(launch, binding)} is {said!r:.60}, "
                f"which must agree with it; write {LEFT_OPEN!r} there"
            )

    def says(self, launch: Launch, binding: Binding, wanted: BindingQuery) -> bool:
        """Whether the file holds a value, or a default is known."""
        if not self.is_named(launch, binding):
            return False
        return wanted.default is not None or self.has_key(launch, binding)

    def read(self, launch: Launch, binding: Binding, wanted: BindingQuery) -> Value:
        """Return the value at the key."""
        said = _said(launch, binding)
        if said is None:
            if wanted.default is not None:
                return wanted.default
            raise LaunchError(f"{_at(launch, binding)} of {wanted.owner} is not there and has no default")
        entries = [_value(entry, launch, binding, wanted) for entry in (said if isinstance(said, list) else [said])]
        if wanted.count is None:
            if isinstance(said, list):
                raise LaunchError(f"{_at(launch, binding)} of {wanted.owner} is a list; one value is wanted")
            return entries[0]
        if len(entries) not in {1, wanted.count}:
            raise LaunchError(
                f"{_at(launch, binding)} of {wanted.owner} has {len(entries)} entries; legal are 1 and {wanted.count}"
            )
        return tuple(entries * wanted.count if len(entries) == 1 else entries)

    def write(self, launch: Launch, binding: Binding, wanted: BindingQuery, value: Value) -> Launch:
        """Set the value at the key in the job's copy."""
        before = launch.files.get(binding.file, {})
        changes = checked_keys(launch, binding.file, {**before, binding.key: _as_said(value, binding)})
        return replace(launch, files={**launch.files, binding.file: changes})


def checked_keys(
    launch: Launch, place: str, changes: Mapping[tuple[str, ...], Value]
) -> Mapping[tuple[str, ...], Value]:
    """Return changes of a config file, which were tried here so that they cannot fail in the job.

    Raises:
        LaunchError: the file is not here, or a key cannot be set.
    """
    path = _file_of(launch, place).path
    with_values(_text(path), changes, path=path)
    return changes


def patches_of(launch: Launch) -> tuple[FilePatch, ...]:
    """Return what the job must change in its copies of config files."""
    patches = []
    for place, changes in launch.files.items():
        file = _file_of(launch, place)
        patches.append(
            FilePatch(
                path=file.path,
                argument=file.argument,
                variable=place.removeprefix("$") if file.argument is None else "",
                digest=hashlib.sha256(_bytes(file.path)).hexdigest(),
                values=tuple(changes.items()),
            )
        )
    return tuple(patches)


def _named(launch: Launch, place: str) -> list[NamedFile]:
    """Return the files that stand in a command where ``place`` says: ``$VARIABLE``, a flag, or a path with ``*``."""
    if place.startswith("$"):
        path = launch.env.get(place[1:], "")
        return [NamedFile(path)] if path else []
    args = launch.script_args
    if place.startswith("-") or place.endswith("="):
        found = [item for item in find_flag(args, place, is_value=looks_like_value) if item.texts]
        return [NamedFile(item.texts[-1], item.stop - 1) for item in found]
    words = [(index, word.rpartition("=")[2]) for index, word in enumerate(args)]
    return [NamedFile(path, index) for index, path in words if path == place or fnmatchcase(path, place)]


def _file_of(launch: Launch, place: str) -> NamedFile:
    found = _named(launch, place)
    if len(found) != 1:
        stands = "stands more than once in the command" if found else "names no file in the command"
        raise LaunchError(f"{place} {stands}, where a config file is wanted")
    return found[0]


def _said(launch: Launch, binding: Binding) -> object:
    """Return what stands at the key, as the launch has changed it; ``None`` where nothing does."""
    changed = launch.files.get(binding.file, {})
    if binding.key in changed:
        value = changed[binding.key]
        return list(value) if isinstance(value, tuple) else value
    said = value_at(_document(_file_of(launch, binding.file).path), binding.key)
    return None if said is MISSING else said


def _value(said: object, launch: Launch, binding: Binding, wanted: BindingQuery) -> Scalar:
    for known, text in binding.file_words:
        if text and same_value(_literal(text), said if isinstance(said, bool | int | float | str) else ()):
            return known
    where = _at(launch, binding)
    if isinstance(said, str):
        return read_scalar(said, wanted.choices, where=where)
    if not isinstance(said, bool | int | float):
        raise LaunchError(f"{where} of {wanted.owner} is {said!r:.60}; one value or a list of values is wanted")
    if wanted.choices and not any(_is_like(said, choice) for choice in wanted.choices):
        raise LaunchError(f"{where} of {wanted.owner} is {said!r:.60}; legal are {', '.join(map(str, wanted.choices))}")
    return next((choice for choice in wanted.choices if same_value(choice, said)), said)


def _is_like(said: object, choice: Scalar) -> bool:
    return isinstance(said, bool) == isinstance(choice, bool) and isinstance(choice, bool | int | float)


def _as_said(value: Value, binding: Binding) -> Value:
    """Return a value as the file says it."""
    if isinstance(value, tuple):
        said = [_as_said(entry, binding) for entry in value]
        return tuple(entry for entry in said if not isinstance(entry, tuple))
    return next((_literal(text) for known, text in binding.file_words if text and same_value(known, value)), value)


def _literal(text: str) -> Scalar:
    """Return the number or the yes or no that a trainer's word for a value is in a file, else the word."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, bool | int | float) else text


def _at(launch: Launch, binding: Binding) -> str:
    found = _named(launch, binding.file)
    return f"{'.'.join(binding.key)} in {found[-1].path if found else binding.file}"


def _document(path: str) -> Document:
    return _parsed(_text(path), path)


@lru_cache(maxsize=8)
def _parsed(text: str, path: str) -> Document:
    return parse_document(text, path=path)


def _text(path: str) -> str:
    try:
        return _bytes(path).decode()
    except UnicodeDecodeError:
        raise LaunchError(f"{path}, which the command names, is not UTF-8 text") from None


def _bytes(path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise LaunchError(f"{path}, which the command names, cannot be read here: {why}") from None
    if len(content) > MAX_BYTES:
        raise LaunchError(f"{path} has more than the {MAX_BYTES} bytes that are read")
    return content
