"""Words of a command by name: its flags, ``key=value`` arguments and positional arguments, each with its value."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from torchx_cubicml.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Sequence

_NAME = re.compile(r"(?P<dashes>-{1,2}|\+{0,2})(?P<name>[A-Za-z][\w.-]*)(?P<rest>=.*)?", re.DOTALL)
_NUMBER = re.compile(r"-[\d.]")


def argument_words(arguments: Sequence[str]) -> dict[str, str]:
    """Return the value of each flag and ``key=value`` argument by its name, and of each other argument by its position.

    Digested arguments (``digested_arguments``) give the same names, with digests for values. Hyphens and underscores in
    a name are the same. A word after a flag counts as its value, as it cannot be told from an argument.

    >>> argument_words(["config.py", "--seq-len", "512", "--compile", "-b4", "model.depth=2"])
    {'argument 1': 'config.py', '--seq_len': '512', '--compile': '', '-b': '4', 'model.depth=': '2'}
    """
    words: dict[str, list[str]] = {}
    flag, n_positional, is_over = "", 0, False
    for word in arguments:
        found = None if is_over or _NUMBER.match(word) else _NAME.fullmatch(word)
        if word == "--" and not is_over:
            flag, is_over = "", True
        elif found is not None and (found["dashes"] in {"-", "--"} or found["rest"]):
            flag, value = _split(found)
            words.setdefault(flag, []).extend([] if value is None else [value])
            flag = flag if value is None else ""
        elif flag:
            words[flag].append(word)
        else:
            n_positional += 1
            words[f"argument {n_positional}"] = [word]
    return {name: " ".join(values) for name, values in words.items()}


def with_underscores(name: str) -> str:
    """Return a flag or key with underscores for the hyphens in it, by which two spellings of one flag are equal.

    >>> with_underscores("--hidden-size"), with_underscores("model.n-layers=")
    ('--hidden_size', 'model.n_layers=')
    """
    dashes = name[: len(name) - len(name.lstrip("-"))]
    return f"{dashes}{name.lstrip('-').replace('-', '_')}"


def names_as_typed(arguments: Sequence[str]) -> dict[str, str]:
    """Return the flags and keys of a command as typed, by their names in ``argument_words``; the last spelling counts.

    >>> names_as_typed(["--seq-len", "512", "--compile", "model.depth=2"])
    {'--seq_len': '--seq-len', '--compile': '--compile', 'model.depth=': 'model.depth='}
    """
    typed: dict[str, str] = {}
    for word in arguments:
        found = _NAME.fullmatch(word)
        if found is not None:
            name = f"{found['dashes']}{found['name']}" if found["dashes"] else f"{found['name']}="
            typed[with_underscores(name)] = name
    return typed


def _split(found: re.Match[str]) -> tuple[str, str | None]:
    dashes, name, rest = found["dashes"], found["name"].replace("-", "_"), found["rest"]
    if dashes == "-" and len(name) > 1 and rest is None and name[1:].isdigit():
        return f"-{name[0]}", name[1:]
    if dashes in {"-", "--"}:
        return f"{dashes}{name}", None if rest is None else rest[1:]
    return f"{name}=", rest[1:]


def negation(flag: str) -> str:
    """Return the flag that switches ``flag`` off.

    Raises:
        LaunchError: ``flag`` is a short flag.

    >>> negation("--compile"), negation("--compile.enable")
    ('--no-compile', '--compile.no-enable')
    """
    if not flag.startswith("--"):
        raise LaunchError(f"{flag} cannot be switched off: only a long flag has a --no- form")
    section, dot, key = flag[2:].rpartition(".")
    return f"--{section}{dot}no-{key}"


def negations(flag: str) -> frozenset[str]:
    """Return every spelling that switches a flag off; none for a short flag and for ``name=value``."""
    if not flag.startswith("--") or flag.endswith("="):
        return frozenset()
    off = negation(flag)
    section, _, _ = off.rpartition("no-")
    key = off.removeprefix(f"{section}no-")
    return frozenset({off, f"{section}no_{key}", f"--no-{flag[2:]}", f"--no_{flag[2:]}"})
