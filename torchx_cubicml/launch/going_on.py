"""Signs that a command goes on with an earlier training: flags that say so, and folders that hold checkpoints."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Self

from torchx_cubicml.facts.named_places import NamedPlace, place_of, words_of
from torchx_cubicml.launch.command_facts.stated_settings import StatedSettings
from torchx_cubicml.launch.command_texts import program_path, recorded_variables
from torchx_cubicml.launch.scheduler import program_environment
from torchx_cubicml.records.argument_words import argument_words
from torchx_cubicml.records.resumption import UNSEEN, folder_id
from torchx_cubicml.settings import child_environment, read_job_environment

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torchx_cubicml.launch.launch import Launch

_MOST_WORDS = 128  # of a command; each is looked up as a path
_MOST_ENTRIES = 500  # of a folder
_MOST_LOOKED_AT = 20_000  # in a folder and those within
_MOST_DEPTH = 4
_MOST_OUTER = 2  # folders around a checkpoint that a flag names, in which an earlier launch may have named its root
_MOST_CHARACTERS = 1024
# Names of files that are checkpoints, and of those that may be one.
_CHECKPOINT = re.compile(r"\.(?:pt|pth|ckpt|distcp|safetensors|bin|metadata|tar)$")
_MAY_BE_ONE = re.compile(r"^(?!.*tfevents|.*\.(?:txt|log|out|err|jsonl?|ya?ml|toml|csv|md|py|sh|html|png)$)")
_ELSE = frozenset({"no", "not", "interval", "every"})  # words of names that say no more than when or whether not


@dataclass(frozen=True)
class CommandPaths:
    """Paths that the words of a command name.

    Args:
        settings: name -> text, of arguments, config files and variables.
        start: working folder of the launch.
    """

    settings: Mapping[str, str]
    start: str

    @classmethod
    def of(cls, launch: Launch, start: str = "", *, shell: Mapping[str, str] | None = None) -> Self:
        """Read the words of a command, of the config files that it names, and of the variables that it sets or reads.

        Args:
            launch: the command.
            start: its working folder; empty for that of this process.
            shell: environment from which it is started; by default that of this process.
        """
        stated = StatedSettings.of(launch)
        program = program_path(launch.program, is_module=launch.is_module, folder=start)
        environment = program_environment(launch)
        shell = child_environment({}) if shell is None else shell
        own = {name for name, text in launch.env.items() if shell.get(name) != text}
        named = {*own, *recorded_variables(program, environment)}
        settings = {
            **{name.lower(): environment[name] for name in named if name in environment},
            **{name: each.value for name, each in {**stated.files, **stated.arguments}.items()},
            **{name: word for name, word in argument_words(launch.script_args).items() if " " in name},  # positional
        }
        texts = {name: str(value).strip() for name, value in settings.items() if not isinstance(value, tuple)}
        usual = {name: text for name, text in texts.items() if len(text) <= _MOST_CHARACTERS and "\0" not in text}
        return cls(settings=usual, start=os.path.realpath(start or Path.cwd()))

    @cached_property
    def words(self) -> Mapping[str, str]:
        """Words that may be paths, or names of folders, with the real path of each; without the working folder."""
        words = {word: self.path(word) for word in islice(dict.fromkeys(self.settings.values()), _MOST_WORDS)}
        return {word: path for word, path in words.items() if path != self.start}

    @cached_property
    def outputs(self) -> Mapping[str, str]:
        """Settings that name an output, with the real path of each."""
        named = self.settings.items()
        return {name: self.path(text) for name, text in named if place_of(name, text) is NamedPlace.OUTPUT}

    def path(self, word: str) -> str:
        """Return the real path that a word names; that of a remote place is the word itself."""
        if "://" in word:
            return word.rstrip("/")
        return os.path.realpath(os.path.join(self.start, os.path.expanduser(word)))  # noqa: PTH111, PTH118 - no link is to be lost

    def places(self, path: str) -> tuple[str, ...]:
        """Return the ids of the places of a checkpoint: its root first, then the folders between the root and it.

        The root is the innermost place that words name, each part by a word; else what stands directly in the working
        folder; else ``UNSEEN``.

        Args:
            path: of a file, or of a folder with files.
        """
        outer = [str(each) for each in reversed(Path(path).parents)] if "://" not in path else []
        named, root = {*self.words.values()}, ""
        for place in (*outer, path):
            parent, _, name = place.rpartition("/")
            root = place if place in named or (root and root == parent and name in self.words) else root
        is_file = not Path(path).is_dir() and bool(Path(path).suffix)
        folders = outer if is_file else [*outer, path]
        if root:
            inside = [place for place in folders if f"{place}/".startswith(f"{root}/")]
            return tuple(dict.fromkeys([folder_id(root), *map(folder_id, inside)]))
        below = [place for place in (*outer, path) if place.startswith(f"{self.start}/")]
        inside = [place for place in folders if place in below] or folders[-1:]
        return (folder_id(below[0], is_named=False) if below else UNSEEN, *map(folder_id, inside))

    def shows_checkpoint(self) -> bool:
        """Return whether the working folder, or a path that words name, holds what is surely a checkpoint."""
        return any(_holds_something(each, _CHECKPOINT) for each in (*self.words.values(), *_entries(self.start)))

    @staticmethod
    def around(path: str) -> list[str]:
        """Return the ids of a checkpoint that words name, and of the folders in which its launch may have named it."""
        return [folder_id(str(each)) for each in (path, *Path(path).parents[:_MOST_OUTER])]

    def found(self) -> Iterator[str]:
        """Yield the ids of the places that exist and hold something, as a launch that saved there has recorded them."""
        for word, path in self.words.items():
            inner = [f"{path}/{name}" for name in self.words if "/" not in name and name != word]
            for place in filter(_holds_something, (path, *(inner if Path(path).is_dir() else ()))):
                yield folder_id(place)
                yield folder_id(place, is_named=False)
        for place in filter(_holds_something, _entries(self.start)):
            yield folder_id(place, is_named=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeSigns:
    """Signs that a command goes on with an earlier training.

    Args:
        says: flag, key or variable that says so; empty without.
        is_blind: whether it names no path, no word names an output, and no checkpoint is in sight.
        holds: flag, key or variable of an output that holds checkpoints, of whomever; empty without.
        places: ids of places that exist and may hold its checkpoints.
        job: scheduler's name of a job that was started before; empty of others.
        starts_again: whether the job can start as typed if it turns out to go on with another training.
    """

    says: str = ""
    is_blind: bool = False
    holds: str = ""
    places: frozenset[str] = frozenset()
    job: str = ""
    starts_again: bool = False

    @classmethod
    def of(cls, launch: Launch) -> Self:
        """Return the signs of a command, in its working folder."""
        paths = CommandPaths.of(launch)
        named = ((name, _says_resume(name, text, paths)) for name, text in paths.settings.items())
        said = {name: path for name, path in named if path is not None}
        stated = [each for path in filter(None, said.values()) for each in paths.around(path)]
        job = read_job_environment()
        local = ((name, path) for name, path in paths.outputs.items() if "://" not in path)
        return cls(
            says=next(iter(said), ""),
            is_blind=bool(said) and not stated and not paths.outputs and not paths.shows_checkpoint(),
            holds=next((name for name, path in local if _holds_something(path, _CHECKPOINT)), ""),
            places=frozenset(stated or (UNSEEN, *paths.found())),
            job=job.scheduler_job_id if job.attempt[0] else "",
        )


def _says_resume(name: str, text: str, paths: CommandPaths) -> str | None:
    """Return the path of the checkpoint that a setting names, empty for one that the program finds; else ``None``.

    A path that does not exist, or an output folder with nothing but logs in it, is nothing to go on from.
    """
    if place_of(name, text) is not NamedPlace.RESUME or not _ELSE.isdisjoint(words_of(name)):
        return None
    path = paths.path(text)
    if "/" in text or os.path.lexists(path):
        return path if _holds_something(path) else None
    outputs = paths.outputs.values()
    return None if outputs and not any(map(_holds_something, outputs)) else ""


def _holds_something(path: str, kind: re.Pattern[str] = _MAY_BE_ONE) -> bool:
    """Return whether a path is a file with content of a ``kind``, or a folder with one; a remote place may be."""
    if "://" in path:
        return True
    with suppress(OSError):
        if not os.path.isdir(path):  # noqa: PTH112 - pathlib adds nothing
            is_such = kind.search(os.path.basename(path)) is not None  # noqa: PTH119
            return is_such and os.path.isfile(path) and os.path.getsize(path) > 0  # noqa: PTH113, PTH202
    found = islice(_below(path), _MOST_LOOKED_AT)
    return any(kind.search(each.name) is not None and _has_content(each) for each in found)


def _below(path: str) -> Iterator[os.DirEntry[str]]:
    """Yield what a folder holds, the outer folders first."""
    folders = [path]
    for _ in range(_MOST_DEPTH):
        inner: list[str] = []
        for folder in folders:
            with suppress(OSError), os.scandir(folder) as entries:
                for each in entries:
                    yield each
                    inner += [each.path] if each.is_dir() else []
        folders = inner


def _has_content(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file() and entry.stat().st_size > 0
    except OSError:
        return False


def _entries(path: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return [each.path for each in islice(entries, _MOST_ENTRIES)]
    except OSError:
        return []
