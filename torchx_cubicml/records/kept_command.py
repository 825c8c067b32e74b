"""Kept command of a launch: its words and the values that no word states, so that a stranger can repeat it.

It is recorded only where the user keeps commands. Secrets are masked. Nothing of it is executed: it is printed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.records.redaction import MASK, mask, masked_words, names_secret
from torchx_cubicml.records.shell_words import shell_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchx_cubicml.records.values import Value

WORDS = "words"
"""Name of the words in a kept command."""
_HOOK, _FILE = "hook ", "file "


def kept_command(
    words: Sequence[str],
    *,
    variables: Mapping[str, str],
    hooks: Mapping[str, Value],
    files: Mapping[str, Value],
) -> dict[str, Value]:
    """Return the command of a record, with secrets masked.

    Args:
        words: launcher, program and arguments.
        variables: environment variables of the command.
        hooks: hook -> value that the recorder set in the job.
        files: path and key of a value that the job read from its own copy of a config file -> value.

    >>> kept = kept_command(["python", "t.py", "--api_key", "x", "a b"], variables={"N": "2"}, hooks={}, files={})
    >>> command_text(kept)
    "N=2 python t.py --api_key '***' 'a b'"
    """
    settings = [f"{name}={MASK if names_secret(name) else text}" for name, text in variables.items()]
    return {
        WORDS: (*map(mask, settings), *masked_words(words)),
        **{f"{_HOOK}{name}": value for name, value in hooks.items()},
        **{f"{_FILE}{place}": value for place, value in files.items()},
    }


def command_text(command: Mapping[str, Value]) -> str:
    """Return the words of a kept command ready for a shell; empty without any."""
    words = command.get(WORDS, ())
    texts = [str(word) for word in words] if isinstance(words, tuple) else []
    return shell_text(texts)


def command_notes(command: Mapping[str, Value]) -> list[str]:
    """Return the values that the words of a kept command do not state, one sentence each."""
    notes = [
        f"the job set {name.removeprefix(_HOOK)} = {value} by a hook, which needs the space file"
        for name, value in command.items()
        if name.startswith(_HOOK)
    ]
    notes += [
        f"the job read {name.removeprefix(_FILE)} = {value} from its copy of that config file: set it there"
        for name, value in command.items()
        if name.startswith(_FILE)
    ]
    words = command.get(WORDS, ())
    if isinstance(words, tuple) and any(MASK in str(word) for word in words):
        notes.append(f"{MASK} stands for a secret: give your own")
    return notes
