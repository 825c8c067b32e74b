"""Command of the present launch as settings by name, to be compared with those of recorded launches.

A setting is a flag with its value, an argument, an environment variable, a key of a config file, or a constant or the
code of the program's file. Settings are compared as digests and kept nowhere.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2s
from typing import TYPE_CHECKING

from torchx_cubicml.records.argument_words import argument_words, negations
from torchx_cubicml.records.arguments import KEY_ID, digested_arguments, is_keyed, text_digest
from torchx_cubicml.records.harmless_settings import is_harmless
from torchx_cubicml.records.trial import Origin
from torchx_cubicml.records.workload import recency
from torchx_cubicml.space import BindingKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Value
    from torchx_cubicml.space import Binding, SearchSpace

PROGRAM = "program"
"""Name of the code of the program's file among the texts of a command."""
LAUNCHED = "launched"
"""Name of the digest of the program's file as the launcher read it, among those of a record."""
TEXTS_KNOWN = "$"
"""Setting of a launch that recorded the texts beside its arguments."""
_MACRO = "${"  # of TorchX or torchrun: the program receives another text
_OF_RECORD = frozenset({LAUNCHED, KEY_ID})
_OTHER_KEY = "@"  # before the key of a digest that equals nothing under the first key


@dataclass(frozen=True)
class PresentCommand:
    """Command of the present launch, in texts.

    Args:
        arguments: of the program.
        texts: other texts by name, as ``command_texts`` gives them.
        declared: names of the settings that the space file declares.
        redirected: names of the settings that profiling launches change.
        variables: environment variables of the space whose values each launch of the program records.
        stated: reads the values that recorded arguments state in a space, given the facts that the launch recorded.
    """

    arguments: tuple[str, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)
    declared: frozenset[str] = frozenset()
    redirected: frozenset[str] = frozenset()
    variables: frozenset[str] = frozenset()
    stated: Callable[[Sequence[str], SearchSpace, Mapping[str, Value]], Mapping[str, Value | None]] = field(
        default=lambda *_: {}, compare=False, repr=False
    )

    @cached_property
    def _words(self) -> dict[str, str]:
        return {**argument_words(self.arguments), **self.texts}

    @cached_property
    def unknown(self) -> frozenset[str]:
        """Names of settings whose texts the launcher fills in later."""
        return frozenset(name for name, text in self._words.items() if name != PROGRAM and _MACRO in text)

    def settings(self, key: str) -> dict[str, str]:
        """Return the settings by name, as digests under a key; see ``digested_arguments``."""
        digests = {name: text_digest(text, key) for name, text in self.texts.items()} if key else {}
        return {
            **argument_words(digested_arguments(self.arguments, key)),
            **digests,
            **({TEXTS_KNOWN: ""} if key else {}),
        }

    def ignores(self, name: str, value: str, origin: Origin | None = None) -> bool:
        """Return whether a setting of this name, with this value or that of this command, never tells works apart."""
        key = f":{name.rpartition(':')[2]}"
        named = {name, key} if ":" in name else {name}
        values = (value, self._words.get(name, ""))
        if named & self.declared or name in self.unknown or any(is_harmless(name, each) for each in values):
            return True
        return origin is Origin.TUNE and bool(named & self.redirected)

    def identity(self) -> list[list[str]]:
        """Return the settings that may tell two works apart, for the name of a cache file."""
        return sorted([name, text] for name, text in self._words.items() if not self.ignores(name, text))


class RecordedSettings:
    """Settings of recorded launches, comparable with those of the present command.

    Args:
        command: the present one.
        keys: of the store's digests. A record made with another key than the first one has the present command's own
            digest where it is of the same text, and else a value that equals no other.
    """

    def __init__(self, command: PresentCommand, keys: Sequence[str]) -> None:
        self._command, self._keys = command, tuple(keys)
        self._key = keys[0] if keys else ""
        self._here = {key: command.settings(key) for key in {"", *keys}}
        self._ids = {text_digest("", key): key for key in keys}

    @property
    def here(self) -> dict[str, str]:
        """Settings of the present command that may tell two works apart, as the launcher finds them."""
        return self._compared(self._here[self._key])

    def present(self, own: Iterable[Trial]) -> dict[str, str]:
        """Return ``here`` with the program's file as the job of the latest launch of the same file found it.

        Launcher and job may read two files: another checkout, or an image.

        Args:
            own: trials of the workload.
        """
        digest = program_digest(self._command.texts)
        launched = {text_digest(digest, key) for key in self._keys} if digest else set()
        same = [trial for trial in own if trial.digests and trial.digests.get(LAUNCHED) in launched]
        if not same:
            return self.here
        found = self.of(max(same, key=recency))
        others = {name: value for name, value in self.here.items() if not is_of_program(name)}
        return others | {name: value for name, value in found.items() if is_of_program(name)}

    def can_compare(self, trial: Trial) -> bool:
        """Return whether the digests of a trial with recorded arguments were made with a known key, or it has none."""
        is_with_key = trial.digests is not None or is_keyed(trial.arguments or ())
        return not is_with_key or bool(self._key_of(trial))

    def of(self, trial: Trial) -> dict[str, str]:
        """Return the settings of a trial with recorded arguments that may tell its work from another."""
        arguments, digests = trial.arguments or (), trial.digests
        is_with_key = digests is not None or is_keyed(arguments)
        key = self._key_of(trial) if is_with_key else ""
        settings = {
            name: self._value(name, value, key, is_digest=is_keyed([value]) or key == "")
            for name, value in argument_words(arguments).items()
        }
        if digests is not None:
            texts = {name: value for name, value in digests.items() if name not in _OF_RECORD}
            settings |= {name: self._value(name, value, key) for name, value in texts.items()}
            settings[TEXTS_KNOWN] = ""
        return self._compared(settings, trial.origin)

    def _value(self, name: str, value: str, key: str | None, *, is_digest: bool = True) -> str:
        if key == self._key or not is_digest:
            return value
        if key is not None and self._here[key].get(name) == value:
            return self._here[self._key][name]
        return value if key == "" else f"{value}{_OTHER_KEY}{key}"

    def _key_of(self, trial: Trial) -> str | None:
        """Return the key that a record was made with; ``None`` where it is none of the store's."""
        recorded = (trial.digests or {}).get(KEY_ID)
        if recorded is None:
            return self._key  # of an earlier release
        return self._ids.get(recorded)

    def _compared(self, settings: Mapping[str, str], origin: Origin | None = None) -> dict[str, str]:
        return {name: value for name, value in settings.items() if not self._command.ignores(name, value, origin)}


def is_of_program(name: str) -> bool:
    """Return whether a setting is the program's code, a constant in it, or the default of one of its flags."""
    return name.partition(":")[0] == PROGRAM


def program_digest(texts: Mapping[str, str]) -> str:
    """Return one digest of the texts of a program's file among those of a command; empty where there are none.

    The launcher passes it to the job, which may find another file.
    """
    parts = sorted([name, text] for name, text in texts.items() if is_of_program(name))
    return blake2s(json.dumps(parts).encode(), digest_size=8).hexdigest() if parts else ""


def has_same_key(one: str | None, other: str | None) -> bool:
    """Return whether two values of a setting can be told apart: their digests were made with the same key."""
    return one is None or other is None or one.partition(_OTHER_KEY)[1:] == other.partition(_OTHER_KEY)[1:]


def setting_names(binding: Binding) -> Iterator[str]:
    """Yield the names of the settings that a binding declares."""
    beside = [flag for _, companions in binding.companions for flag, _ in companions]
    if binding.key:
        yield f":{'.'.join(binding.key)}"
    if binding.kind == BindingKind.ENV:
        yield f"${binding.name}"
    elif binding.kind == BindingKind.FLAG:
        for name in (binding.name, *binding.aliases, *beside):
            yield from argument_words([name if not name.endswith("=") else f"{name}0"])
            for negated in negations(name):
                yield from argument_words([negated])
