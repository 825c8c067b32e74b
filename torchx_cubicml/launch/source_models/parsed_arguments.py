"""Arguments of a program as its parser would give them, by the flags that its source adds."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from torchx_cubicml.launch.command_facts.source_literals import parser_flags
from torchx_cubicml.launch.source_files import nodes_of
from torchx_cubicml.launch.source_models.abstract_values import (
    UNKNOWN,
    UNKNOWN_NAMES,
    Instance,
    LibraryName,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchx_cubicml.launch.command_facts.stated_settings import StatedSettings

_PLAIN_TYPES = frozenset({"int", "float", "str", "bool"})
_SWITCHES = {"store_true": True, "store_false": False}


class ParsedArguments:
    """Arguments of a program, completed while its calls of a parser are followed.

    Args:
        trees: source files of the program; the flags that they spell out count where no call is followed.
        settings: values that the command states.

    Attributes:
        followed: name of each argument of a followed call -> value; unknown ones too.
    """

    def __init__(self, trees: Sequence[ast.Module], settings: StatedSettings) -> None:
        self._settings = settings
        self._spelled: dict[str, object] = {}
        for tree in trees:
            for name, flag in parser_flags(tree).items():
                is_open = flag.default is None and not flag.has_no_default
                default = UNKNOWN if is_open else flag.default
                self._spelled.setdefault(name, self._value((name,), default, has_own_type=flag.has_own_type))
        self._has_unnamed = any(map(_adds_unnamed_flags, trees))
        self._misses_names = False
        self.followed: dict[str, object] = {}

    def decide(self, name: str, positional: Sequence[object], keywords: Mapping[str, object]) -> object | None:
        """Return the value of a call of a parser; ``None`` for any other call."""
        last = name.rpartition(".")[2]
        if last == "add_argument":
            self._add(positional, keywords)
            return UNKNOWN
        if last == "set_defaults":
            self._set_defaults(keywords)
            return UNKNOWN
        if last in {"parse_args", "parse_known_args"}:
            return self._parsed() if last == "parse_args" else (self._parsed(), [])
        return UNKNOWN if last == "parse_args_into_dataclasses" else None

    def _add(self, positional: Sequence[object], keywords: Mapping[str, object]) -> None:
        names = [each for each in positional if isinstance(each, str)]
        if len(names) < len(positional) or UNKNOWN_NAMES in keywords:
            self._misses_names = True
            return
        flags = [each.lstrip("-").replace("-", "_") for each in names if each.startswith("--")]
        if not flags:
            return
        action, default, kind = str(keywords.get("action")), keywords.get("default"), keywords.get("type")
        if action in _SWITCHES and "default" not in keywords:
            default = not _SWITCHES[action]
        has_own_type = not (kind is None or (isinstance(kind, LibraryName) and kind.path in _PLAIN_TYPES))
        destination = keywords.get("dest")
        name = destination if isinstance(destination, str) else flags[0]
        value = self._value(flags, default, has_own_type=has_own_type)
        self.followed[name] = UNKNOWN if "nargs" in keywords else value

    def _set_defaults(self, keywords: Mapping[str, object]) -> None:
        names = {**self._spelled, **self.followed} if UNKNOWN_NAMES in keywords else keywords
        for name in names:
            stated = self._settings.arguments.get(name)
            value = keywords.get(name, UNKNOWN) if stated is None else stated.value
            self.followed[name] = value

    def _value(self, flags: Sequence[str], default: object, *, has_own_type: bool) -> object:
        setting = next((self._settings.arguments[each] for each in flags if each in self._settings.arguments), None)
        value = default if setting is None else setting.value
        return UNKNOWN if has_own_type and isinstance(value, str) else value

    def _parsed(self) -> Instance:
        attributes = {**self._spelled, **self.followed}
        if self._misses_names or (self._has_unnamed and not self.followed):
            stated = {name: setting.value for name, setting in self._settings.arguments.items()}
            attributes = {**stated, **attributes, UNKNOWN_NAMES: UNKNOWN}
        return Instance(attributes=attributes)


def _adds_unnamed_flags(tree: ast.Module) -> bool:
    """Return whether a source adds flags to a parser whose names it does not spell out, as in a loop."""
    calls = (node for node in nodes_of(tree) if isinstance(node, ast.Call) and node.args)
    added = (node for node in calls if getattr(node.func, "attr", "") == "add_argument")
    return any(not isinstance(each, ast.Constant) for node in added for each in node.args)
