"""TorchX scheduler of a launch and its options, as the command line of ``torchx run`` and ``.torchxconfig`` state them.

A component does not receive them.
"""

from __future__ import annotations

import argparse
import configparser
import re
import sys
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NoReturn

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.launch.torchx_config import read_ini
from torchx_cubicml.records.workload import is_same_program
from torchx_cubicml.settings import child_environment

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torchx_cubicml.launch.launch import Launch
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Workload

# Schedulers whose jobs can access folders of this machine only if the user mounts them. TorchX runs jobs of LSF, too,
# by docker.
_CONTAINED = frozenset(
    {"aws_batch", "aws_sagemaker", "gcp_batch", "kubernetes", "kubernetes_mcad", "local_docker", "lsf"}
)
_ON_NODES = frozenset({"ray"})  # without a container of their own, on nodes that need not share files
_PAIR = re.compile(r"(?:^|[,;])\s*([\w-]+)=")
_ON_THIS_MACHINE = frozenset({"local", "local_cwd"})  # without a container
_SHARES_FILES = frozenset({"local", "local_cwd", "slurm"})
_RUNS_NO_COMMAND = "aws_sagemaker"  # TorchX hands it a script and named arguments in place of a command


def scheduler_of_process() -> str:
    """Return the scheduler that this process launches on; empty if it is not ``torchx run``."""
    words = _words_of_torchx_run()
    return "" if words is None else scheduler_of(words)


def scheduler_options_of_process() -> dict[str, str]:
    """Return the options of the scheduler that this process launches on; none if it is not ``torchx run``."""
    words = _words_of_torchx_run()
    options = None if words is None else _options_of(words)
    if words is None or options is None:
        return {}
    return scheduler_options(scheduler_of(words), options.scheduler_args or "")


def scheduler_options(scheduler: str, text: str) -> dict[str, str]:
    """Return the options of a scheduler -> text of each: of ``-cfg``, and else of its section of ``.torchxconfig``."""
    from torchx.runner.config import find_configs

    options = option_texts(text)
    for path in find_configs():
        file = read_ini(path, configparser.RawConfigParser())
        stated = file.items(scheduler) if file.has_section(scheduler) else []
        options = {**{name: value for name, value in stated if value != "None"}, **options}
    return options


def option_texts(text: str) -> dict[str, str]:
    """Return option -> text of its value in a ``-cfg``; a list keeps its separators, as in TorchX.

    >>> option_texts("partition=a,b,time=10;job_dir=/tmp")
    {'partition': 'a,b', 'time': '10', 'job_dir': '/tmp'}
    >>> option_texts("")
    {}
    """
    found = list(_PAIR.finditer(text))
    ends = [*(match.start() for match in found), len(text)][1:]
    return {match[1]: text[match.end() : end].strip() for match, end in zip(found, ends, strict=True)}


def with_option_texts(text: str, options: Mapping[str, str]) -> str:
    """Return a ``-cfg`` with other values of some options.

    >>> with_option_texts("partition=slow,time=10", {"partition": "fast", "comment": "x"})
    'partition=fast,time=10,comment=x'
    """
    return ",".join(f"{name}={value}" for name, value in {**option_texts(text), **options}.items())


def is_dry_run() -> bool:
    """Return whether this process is ``torchx run --dryrun``, which launches nothing."""
    words = _words_of_torchx_run()
    return words is not None and is_dry_run_of(words)


def is_dry_run_of(words: Sequence[str]) -> bool:
    """Return whether ``--dryrun`` is among the arguments of ``torchx run``, before the component and its own.

    >>> is_dry_run_of(["--dryrun", "cubicml", "dist.ddp"]), is_dry_run_of(["cubicml", "dist.ddp", "--", "--dryrun"])
    (True, False)
    """
    return bool(getattr(_options_of(words), "dryrun", False))


def _words_of_torchx_run() -> list[str] | None:
    words = sys.argv[1:]
    if "torchx.cli.cmd_run" not in sys.modules or "run" not in words:
        return None
    return words[words.index("run") + 1 :]


def scheduler_of(words: Sequence[str]) -> str:
    """Return the scheduler that ``torchx run`` takes from its arguments, ``.torchxconfig`` or its own default.

    Args:
        words: arguments of ``torchx run``, including the component and its own; if TorchX rejects them, the result is
            empty.
    """
    from torchx.schedulers import get_default_scheduler_name

    options = _options_of(words)
    if options is None:
        return ""
    return str(options.scheduler or _configured_scheduler() or get_default_scheduler_name())


def program_environment(launch: Launch) -> Mapping[str, str]:
    """Return the environment of a launch's program, as far as the launcher knows it.

    TorchX starts a job on this machine within its own environment; what the command sets counts before it. Other
    schedulers give a job the variables of the command, and others that only the job knows.
    """
    inherited = child_environment({}) if launch.scheduler in _ON_THIS_MACHINE else {}
    return {**inherited, **launch.env}


def recorded_scheduler(trials: Iterable[Trial], workload: Workload) -> str:
    """Return the scheduler of the latest recorded launch of a program, for a command that names none.

    It is empty where ``.torchxconfig`` names one, and where no launch tells one that TorchX knows.

    Args:
        trials: recorded launches.
        workload: facts of the launch, with its program; empty for the launches of any program.
    """
    from torchx.schedulers import get_scheduler_factories

    if _configured_scheduler():
        return ""
    known = get_scheduler_factories()
    found = [
        (trial.started_at, str(trial.observed["scheduler"]))
        for trial in trials
        if trial.observed.get("scheduler") in known and (not workload or is_same_program(trial, workload))
    ]
    return max(found, default=("", ""))[1]


def _configured_scheduler() -> str:
    from torchx.runner.config import get_config

    return str(get_config("cli", "run", "scheduler") or "")


def _options_of(words: Sequence[str]) -> argparse.Namespace | None:
    """Return the options of ``torchx run``; ``None`` if TorchX rejects them."""
    parser = _Parser(add_help=False)
    parser.add_argument("-s", "--scheduler")
    parser.add_argument("--dryrun", action="store_true")
    parser.add_argument("words", nargs=argparse.REMAINDER)
    for names in (("-cfg", "--scheduler_args"), ("--workspace", "--buck-target"), ("--parent_run_id",)):
        parser.add_argument(*names)
    try:
        return parser.parse_known_args(list(words))[0]
    except ValueError:
        return None


def folder_doubt(scheduler: str) -> str:
    """Return why jobs may not reach a folder of this machine, in words that follow its path; empty if they do.

    >>> folder_doubt("kubernetes")
    'may not be visible to jobs on kubernetes, or end with their container'
    >>> folder_doubt("ray")
    'is visible to jobs on ray only if all nodes of the cluster share this folder'
    >>> folder_doubt("slurm")
    ''
    """
    if scheduler in _CONTAINED:
        return f"may not be visible to jobs on {scheduler}, or end with their container"
    if scheduler in _ON_NODES:
        return f"is visible to jobs on {scheduler} only if all nodes of the cluster share this folder"
    return ""


def check_takes_command(scheduler: str) -> None:
    """Check that a scheduler's jobs run a command, in which the recorder can stand in front of the program.

    Raises:
        LaunchError: they do not.
    """
    if scheduler == _RUNS_NO_COMMAND:
        raise LaunchError(f"{scheduler} starts the script by a launcher of its own, so no recorder can precede it")


def store_doubt(store: str, launch: Launch) -> str:
    """Return why the jobs of a launch may not reach a store, after its URL; empty if nothing speaks against it."""
    from torchx_cubicml.store.url import LOCAL_PROTOCOLS, split_url

    doubt = folder_doubt(launch.scheduler)
    protocol, path = split_url(store)
    if not doubt or protocol not in LOCAL_PROTOCOLS:
        return ""
    is_mounted = any(PurePosixPath(path).is_relative_to(folder) for folder in launch.mounted)
    return "" if is_mounted else f"{store} {doubt}"


def is_on_this_machine(scheduler: str) -> bool:
    """Return whether a scheduler's jobs run on this machine, as this user and outside containers.

    >>> is_on_this_machine("local_cwd"), is_on_this_machine("local_docker")
    (True, False)
    """
    return scheduler in _ON_THIS_MACHINE


def sees_this_file_system(scheduler: str) -> bool:
    """Return whether a scheduler's jobs run the files of this machine; not where another image may have its own.

    >>> sees_this_file_system("slurm"), sees_this_file_system("kubernetes"), sees_this_file_system("")
    (True, False, False)
    """
    return scheduler in _SHARES_FILES


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)
