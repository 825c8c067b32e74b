"""Values of earlier launches that stood in environment variables or config files, told by their recorded digests."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from torchx_cubicml.history.present_command import is_of_program
from torchx_cubicml.records.argument_words import argument_words
from torchx_cubicml.records.arguments import text_digest
from torchx_cubicml.space import BindingKind
from torchx_cubicml.space.spelling import texts_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from torchx_cubicml.history.history import History
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Scalar, Value
    from torchx_cubicml.space import Binding, Parameter


class RecordedValues:
    """Values of parameters that are bound to a variable or to a key of a file."""

    def __init__(self, history: History) -> None:
        self._variables, self._current, self._keys = history.command.variables, history.current, history.keys
        self._known: dict[str, Mapping[str, Scalar]] = {}

    def of(self, parameter: Parameter, trial: Trial) -> Value | None:
        """Return the value of a parameter in an earlier launch; ``None`` where it is unknown.

        It is unknown where the launch recorded no texts, or a text that is no choice. It is the default where the
        launch is known to have left it out.
        """
        binding, digests = parameter.binding, trial.digests
        if binding is None or digests is None:
            return None
        found = [digests[name] for name in _places(binding, digests) if name in digests]
        if not found:
            return parameter.default if self._is_absent(binding, digests) else None
        known = self._values_of(parameter, binding)
        values = {known.get(digest) for digest in found}
        return values.pop() if len(values) == 1 else None

    def _values_of(self, parameter: Parameter, binding: Binding) -> Mapping[str, Scalar]:
        """Return the value of each digest that a text of a choice has."""
        if parameter.name not in self._known:
            values = [*parameter.choices, parameter.default, self._current.get(parameter.name)]
            scalars = [value for value in values if value is not None and not isinstance(value, tuple)]
            texts = [(text, value) for value in scalars for text in _texts(binding, value)]
            self._known[parameter.name] = {text_digest(text, key): value for text, value in texts for key in self._keys}
        return self._known[parameter.name]

    def _is_absent(self, binding: Binding, digests: Mapping[str, str]) -> bool:
        """Return whether a launch that recorded no digest of a value would have done so if the value was there."""
        if binding.kind == BindingKind.ENV:
            return binding.name in self._variables
        flags = {place.partition(":")[0] for place in _places(binding, digests)}
        return bool(flags) and not any(f"{flag}:*" in digests for flag in flags)


def is_in_texts(binding: Binding | None) -> bool:
    """Return whether a value stands in a variable or in a config file, or may stand there."""
    return binding is not None and (binding.kind in {BindingKind.ENV, BindingKind.FILE} or bool(binding.file))


def _places(binding: Binding, digests: Mapping[str, str]) -> Iterator[str]:
    """Yield the names under which a launch may have recorded a value; none if the file was not read."""
    if binding.kind == BindingKind.ENV:
        yield f"${binding.name}"
        return
    named = {name.partition(":")[0] for name in digests if ":" in name and not is_of_program(name)}
    if binding.file.startswith("-") or binding.file.endswith("="):
        named &= argument_words([binding.file if not binding.file.endswith("=") else f"{binding.file}0"]).keys()
    if not binding.file.startswith("$"):
        yield from (f"{flag}:{'.'.join(binding.key)}" for flag in sorted(named))


def _texts(binding: Binding, value: Scalar) -> Iterable[str]:
    """Return the texts by which a command may spell a value."""
    if binding.kind == BindingKind.ENV:
        return {*texts_of(value), *(text for known, text in binding.words if known == value)}
    words = [text for known, text in binding.file_words if known == value]
    return {json.dumps(each) for each in (value, *words, *_equal_numbers(value))} | {*words}


def _equal_numbers(value: Scalar) -> Iterator[Scalar]:
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield float(value)
        if float(value).is_integer():
            yield int(value)
