"""Bindings to the options of a job outside its program: of the TorchX component, and of the scheduler."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.space.spelling import read_scalar, spell

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchx_cubicml.launch.bindings.base import BindingQuery
    from torchx_cubicml.launch.launch import Launch
    from torchx_cubicml.records.values import Value
    from torchx_cubicml.space import Binding


class ComponentOptionBinding:
    """Binding to an option of the TorchX component, such as ``--gpu`` or ``-h`` of ``dist.ddp``."""

    def says(self, launch: Launch, binding: Binding, query: BindingQuery) -> bool:
        """Return whether the component has a value for the option, its own default included, or a default is known."""
        return query.default is not None or bool(launch.component_options.get(binding.name))

    def read(self, launch: Launch, binding: Binding, query: BindingQuery) -> Value:
        """Return the value of the option."""
        _check_known(launch, binding, query)
        return _value(launch.component_options, binding, query, place=f"option {binding.name} of the component")

    def write(self, launch: Launch, binding: Binding, query: BindingQuery, value: Value) -> Launch:
        """Return the launch with another value of the option."""
        _check_known(launch, binding, query)
        return replace(launch, component_options={**launch.component_options, binding.name: spell(value)})


class SchedulerOptionBinding:
    """Binding to an option of the scheduler, such as ``partition`` of Slurm: ``-cfg`` of ``torchx run``.

    Only who submits the job can change it: a tune can, the component of an ordinary launch cannot.
    """

    def says(self, launch: Launch, binding: Binding, query: BindingQuery) -> bool:
        """Return whether the option is stated, or a default is known."""
        return query.default is not None or bool(launch.scheduler_options.get(binding.name))

    def read(self, launch: Launch, binding: Binding, query: BindingQuery) -> Value:
        """Return the value of the option."""
        place = f"option {binding.name} of the scheduler (-cfg {binding.name}=VALUE)"
        return _value(launch.scheduler_options, binding, query, place=place)

    def write(self, launch: Launch, binding: Binding, query: BindingQuery, value: Value) -> Launch:
        """Return the launch with another value of the option."""
        if not launch.submits:
            raise LaunchError(
                f"option {binding.name} of {query.owner} is the scheduler's, which only a tune can change"
            )
        text = spell(value)
        if not text or any(letter in text for letter in ",;="):
            raise LaunchError(f"-cfg {binding.name}= of {query.owner} cannot hold {text!r:.60}: it has one of , ; =")
        return replace(launch, scheduler_options={**launch.scheduler_options, binding.name: text})


def _check_known(launch: Launch, binding: Binding, query: BindingQuery) -> None:
    if binding.name not in launch.component_options:
        there = ", ".join(sorted(launch.component_options)) or "none, as no component starts this command"
        raise LaunchError(f"{query.owner}: the component has no option {binding.name}; options there: {there}")


def _value(options: Mapping[str, str], binding: Binding, query: BindingQuery, *, place: str) -> Value:
    text = options.get(binding.name, "")
    if not text:
        if query.default is not None:
            return query.default
        raise LaunchError(f"{place} is not stated for {query.owner}; state it, or declare a default")
    return read_scalar(text, query.choices, where=binding.name)
