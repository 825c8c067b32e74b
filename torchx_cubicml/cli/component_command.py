"""Commands that start a launch, as sub-commands read and print them: of a component, torchrun or another launcher."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torchx_cubicml.cli.base import found_store, scheduler_words
from torchx_cubicml.records.redaction import mask

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from torchx_cubicml.launch import ComponentLaunch, Launch, TorchrunLaunch
    from torchx_cubicml.launch.launchers.command_launch import CommandLaunch


def is_launcher_command(name: str) -> bool:
    """Return whether a command begins with torchrun or another launcher, and not with a component."""
    from torchx_cubicml.launch.launchers.table import is_launcher

    return is_launcher(name)


def read_command(name: str, words: Sequence[str], *, env: Mapping[str, str]) -> TorchrunLaunch | CommandLaunch:
    """Return the launch of torchrun or another launcher, as ``cubicrun`` reads it.

    Args:
        name: first word of the command.
        words: the further words.
        env: environment in which it starts.

    Raises:
        LaunchError: it starts no Python program that can be recorded.
    """
    from torchx_cubicml.launch import TorchrunLaunch
    from torchx_cubicml.launch.launchers.command_launch import CommandLaunch

    is_torchrun = name == "torchrun"
    return TorchrunLaunch.parse(words, env=env) if is_torchrun else CommandLaunch.parse([name, *words], env=env)


def cubicrun_arguments(command: TorchrunLaunch | CommandLaunch, launch: Launch) -> list[str]:
    """Return the arguments of cubicrun that start a command with all that ``launch`` states."""
    from torchx_cubicml.launch import TorchrunLaunch

    words = command.with_launcher_of(launch).typed(launch.script_args)
    return words if isinstance(command, TorchrunLaunch) else ["--", *words]


def with_scheduler(component: ComponentLaunch, args: argparse.Namespace) -> ComponentLaunch:
    """Return the component's launch on the scheduler of the options; what is printed is a whole ``torchx run``."""
    from torchx_cubicml.launch.scheduler import scheduler_of, scheduler_options

    scheduler = args.scheduler or scheduler_of([])
    options = scheduler_options(scheduler, args.scheduler_args)
    launch = replace(component.launch, scheduler=scheduler, scheduler_options=options, submits=True)
    return replace(component, launch=launch)


def run_words(
    component: ComponentLaunch, launch: Launch, args: argparse.Namespace, *, before: Sequence[str] = ()
) -> list[str]:
    """Return the command of ``torchx run`` that submits a launch.

    Args:
        component: as typed, with its scheduler.
        launch: the launch.
        args: with the options of ``add_scheduler``.
        before: words in front of the component.
    """
    from torchx_cubicml.launch.launch import changed_scheduler_options
    from torchx_cubicml.launch.scheduler import with_option_texts

    changed = changed_scheduler_options(launch, component.launch)
    options = with_option_texts(args.scheduler_args, changed) if changed else args.scheduler_args
    words = ["torchx", "run", *scheduler_words(args.scheduler, options), *before]
    return [*words, component.source.component, *component.arguments(launch)]


def winner_words(scheduler: str, scheduler_args: str, *, store: str, command: Sequence[str]) -> list[str]:
    """Return the command that launches the best config of a tune again, with the secrets of the store's URL masked.

    Args:
        scheduler: of the tune.
        scheduler_args: its options with the best config.
        store: URL of the store; empty for the one that a launch finds by itself.
        command: component and arguments with the best config.
    """
    options = scheduler_words(scheduler, scheduler_args)
    return ["torchx", "run", *options, "cubicml", *(["--store", mask(store)] if store else []), *command]


def named_store(url: str) -> str:
    """Return the URL of a store as a command must name it: empty for the one that a launch finds by itself."""
    from torchx_cubicml.errors import StoreError
    from torchx_cubicml.store import absolute_url

    try:
        return "" if url == absolute_url(found_store(), for_launch=True) else url
    except StoreError:  # the store that is found by itself has no legal URL
        return url
