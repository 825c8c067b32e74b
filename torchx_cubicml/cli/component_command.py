"""Commands as sub-commands read and print them: of a component, torchrun or another launcher, and what to type next."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from torchx_cubicml.cli.base import found_store, scheduler_words, split_command
from torchx_cubicml.records.redaction import mask

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from torchx_cubicml.launch import ComponentLaunch, Launch, TorchrunLaunch
    from torchx_cubicml.launch.launchers.command_launch import CommandLaunch
    from torchx_cubicml.records.trial import Trial

    TypedCommand = ComponentLaunch | TorchrunLaunch | CommandLaunch


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
    """Return the component's launch on the scheduler of the options."""
    from torchx_cubicml.launch.scheduler import scheduler_of, scheduler_options

    scheduler = args.scheduler or scheduler_of([])
    options = scheduler_options(scheduler, args.scheduler_args)
    launch = replace(component.launch, scheduler=scheduler, scheduler_options=options, submits=True)
    return replace(component, launch=launch)


def on_latest_scheduler(typed: TypedCommand, args: argparse.Namespace, trials: Sequence[Trial]) -> TypedCommand:
    """Return a component's launch on the scheduler of the options, else of the program's latest launch.

    The scheduler that is found is noted in ``args``. The command of a launcher stays as it is.
    """
    from torchx_cubicml.launch import ComponentLaunch, workload_of
    from torchx_cubicml.launch.scheduler import recorded_scheduler

    if not isinstance(typed, ComponentLaunch):
        return typed
    args.scheduler = args.scheduler or recorded_scheduler(trials, workload_of(typed.launch))
    return with_scheduler(typed, args)


def typed_command(args: argparse.Namespace, *, env: Mapping[str, str] | None = None) -> TypedCommand:
    """Return the user's own command: of a launcher as ``cubicrun`` starts it, else on the scheduler of the options.

    Args:
        args: with the options of ``add_launch`` and ``add_scheduler``.
        env: environment of a launcher; by default this process's.

    Raises:
        LaunchError: it cannot be read.
    """
    from torchx_cubicml.launch import ComponentLaunch
    from torchx_cubicml.settings import child_environment

    name, words = split_command(args.command)
    if is_launcher_command(name) and not args.scheduler:
        return read_command(name, words, env=child_environment({}) if env is None else env)
    return with_scheduler(ComponentLaunch.parse(name, words), args)


def launch_words(typed: TypedCommand, launch: Launch, args: argparse.Namespace, **ours: str) -> list[str]:
    """Return the command that starts and records ``launch``.

    Args:
        typed: the user's own command.
        launch: the launch.
        args: with the options of ``add_scheduler``.
        ours: see ``run_words``.
    """
    from torchx_cubicml.launch import ComponentLaunch
    from torchx_cubicml.launch.launch import changed_scheduler_options
    from torchx_cubicml.launch.scheduler import with_option_texts

    if isinstance(typed, ComponentLaunch):
        changed = changed_scheduler_options(launch, typed.launch)
        options = with_option_texts(args.scheduler_args, changed) if changed else args.scheduler_args
        return run_words(args.scheduler, options, [typed.source.component, *typed.arguments(launch)], **ours)
    settings = [f"{name}={text}" for name, text in launch.env.items() if typed.launch.env.get(name) != text]
    return [*settings, "cubicrun", *option_words("--cubicml-", ours), *cubicrun_arguments(typed, launch)]


def run_words(scheduler: str, scheduler_args: str, words: Sequence[str], **ours: str) -> list[str]:
    """Return the command that starts and records a component: ``torchx run``, or ``cubicrun`` for a launcher here.

    Args:
        scheduler: its name; empty for the one that TorchX finds.
        scheduler_args: its options.
        words: component and arguments.
        ours: our options by name, as they were given; those that are empty are left out.
    """
    typed = words[2:] if [*words[:2]] == ["utils.sh", "--"] else words
    is_launcher = bool(typed) and is_launcher_command(typed[0])
    if is_launcher and scheduler == "local_cwd" and not _changes_launchers(scheduler, scheduler_args, words):
        command = typed[1:] if typed[0] == "torchrun" else ["--", *typed]
        return ["cubicrun", *option_words("--cubicml-", ours), *command]
    return ["torchx", "run", *scheduler_words(scheduler, scheduler_args), "cubicml", *option_words("--", ours), *words]


def _changes_launchers(scheduler: str, scheduler_args: str, words: Sequence[str]) -> bool:
    """Return whether TorchX starts another command than these words: by macros, options, or its own config."""
    from configparser import RawConfigParser

    from torchx.runner.config import find_configs

    from torchx_cubicml.launch.scheduler import scheduler_options
    from torchx_cubicml.launch.torchx_config import read_ini

    files = [read_ini(path, RawConfigParser()) for path in find_configs()]
    has_defaults = any(file.has_section("component:utils.sh") for file in files)
    return has_defaults or any("$" in word for word in words) or bool(scheduler_options(scheduler, scheduler_args))


def follow_up(*words: str, **ours: str) -> str:
    """Return the sub-command to type next, with the options that this one was given; see ``run_words``."""
    return shlex.join(["torchx", "cubicml", *words, *option_words("--", ours)])


def option_words(prefix: str, ours: Mapping[str, str]) -> list[str]:
    """Return our options as words of a command that is printed; see ``run_words``."""
    given = {name: named_store(text) if name == "store" else text for name, text in ours.items()}
    return [word for name, text in given.items() if text for word in (f"{prefix}{name}", text)]


def named_store(url: str) -> str:
    """Return a store's URL as a command names it, secrets masked; empty for the one that a launch finds by itself."""
    from torchx_cubicml.errors import StoreError
    from torchx_cubicml.store import absolute_url

    try:
        url = absolute_url(url)
        return "" if url == absolute_url(found_store()) else mask(url)
    except StoreError:  # this store, or the one that is found by itself, has no legal URL
        return mask(url)
