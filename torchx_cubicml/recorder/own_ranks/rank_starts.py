"""Hooks on the start of processes: those of a program that may be ranks learn of its launch.

A process of multiprocessing waits for a process group (``joined_rank``). A process of the same Python whose environment
gives it a rank of its own, as Lightning starts them, runs under the recorder. All others start as without us.
"""

from __future__ import annotations

import os
import re
import sys
from functools import wraps
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.recorder.steps.torch_hooks import once_imported
from torchx_cubicml.records.contract import CONTRACT_VARIABLE
from torchx_cubicml.settings import STARTER_VARIABLE, child_environment, read_job_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torchx_cubicml.recorder.own_ranks.rank_starter import RankStarter

_PACKAGE = "torchx_cubicml"
_FOLDER = str(Path(__file__).absolute().parents[3])
_HARMLESS_OPTIONS = re.compile(r"-[uBO]+|-[uBO]*[WX].*")  # with any other one, that Python may not find this package
_PLACE_VARIABLES = ("PYTHONPATH", "PYTHONHOME")  # by which a new Python finds what it imports
_USER_SITE_VARIABLES = ("HOME", "PYTHONUSERBASE", "PYTHONNOUSERSITE")  # likewise, where the user's own folder counts
_MODULES_OF_WORKERS = ("torch.utils.data.", "multiprocessing.pool")
# Runs in the new process before its program. The folder is the last one to be searched, and leaves the path again.
_AWAIT_GROUP = """
import sys
path = sys.path[:]
try:
    sys.path[:] = [*filter(None, path), {folder!r}]  # not the working directory, which may hold a module of any name
    from torchx_cubicml.recorder.own_ranks.joined_rank import await_group
    await_group({contract!r}, {pid!r}, {began!r})
except Exception:
    pass
finally:
    sys.path[:] = path
"""


class _RunsWhenLoaded:
    """Object that runs source text in the process that unpickles it, which need not know this package."""

    def __init__(self, source: str) -> None:
        self._source = source

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return exec, (self._source, {})


def watch_starts(starter: RankStarter, on_start: Callable[[], None]) -> None:
    """Let each process that this one starts and that may be a rank know of ``starter``; run ``on_start`` before.

    This is called before the program runs, which may change the search path of its own process.
    """
    places = place_variables()
    once_imported("multiprocessing.process", lambda: _watch_starts_of_processes(starter, on_start))
    once_imported("multiprocessing.spawn", lambda: _add_to_start_of_process(starter))
    once_imported("subprocess", lambda: _watch_subprocesses(starter, on_start, places))


def _watch_starts_of_processes(starter: RankStarter, on_start: Callable[[], None]) -> None:
    process = getattr(sys.modules["multiprocessing.process"], "BaseProcess", None)
    if process is None:  # a module of the program
        return
    original = process.start

    @wraps(original)
    def start(self: Any) -> None:
        if os.getpid() == starter.pid and not _is_worker(self):
            on_start()
        original(self)

    process.start = start


def _is_worker(process: object) -> bool:
    """Return whether a process serves a data loader or a pool, so that it is no rank."""
    module = getattr(getattr(process, "_target", None), "__module__", None)
    return isinstance(module, str) and module.startswith(_MODULES_OF_WORKERS)


def _add_to_start_of_process(starter: RankStarter) -> None:
    module = sys.modules["multiprocessing.spawn"]
    original: Callable[[str], dict[str, object]] | None = getattr(module, "get_preparation_data", None)
    if original is None:  # a module of the program
        return
    source = _AWAIT_GROUP.format(folder=_FOLDER, contract=starter.contract, pid=starter.pid, began=starter.began)

    @wraps(original)
    def get_preparation_data(name: str) -> dict[str, object]:
        data = original(name)
        if os.getpid() == starter.pid:
            data[_PACKAGE] = _RunsWhenLoaded(source)  # a key that multiprocessing does not know is only unpickled
        return data

    module.get_preparation_data = get_preparation_data  # type: ignore[attr-defined]  # of the module found above


def _watch_subprocesses(starter: RankStarter, on_start: Callable[[], None], places: Mapping[str, str] | None) -> None:
    popen = getattr(sys.modules["subprocess"], "Popen", None)
    if popen is None:  # a module of the program
        return
    original = popen.__init__

    @wraps(original)
    def start(self: Any, *args: Any, **options: Any) -> None:
        words = options["args"] if "args" in options else next(iter(args), None)
        changed = _recorded(words, options, starter, places) if len(args) <= 1 else None  # an executable may follow
        if changed is None:
            original(self, *args, **options)
            return
        on_start()
        command, environment = changed
        options = {**options, "env": environment}
        if args:
            original(self, command, *args[1:], **options)
        else:
            original(self, **{**options, "args": command})
        self.args = words

    popen.__init__ = start


def _recorded(
    words: object, options: Mapping[str, object], starter: RankStarter, places: Mapping[str, str] | None
) -> tuple[list[str], dict[str, str]] | None:
    """Return words and environment with which a new process runs under the recorder; ``None`` if it is no rank."""
    try:
        environment = options.get("env")
        if (
            os.getpid() != starter.pid
            or places is None
            or options.get("executable")
            or options.get("shell")
            or not isinstance(environment, dict)
        ):
            return None
        if not isinstance(words, list | tuple) or not is_rank_of_its_own(environment):
            return None
        command = recorded_words([os.fsdecode(word) for word in words])
        if command is None or any(environment.get(name, "") != text for name, text in places.items()):
            return None
        return command, {**environment, CONTRACT_VARIABLE: starter.contract, STARTER_VARIABLE: starter.encode()}
    except Exception:  # noqa: BLE001 - the process starts as without us
        return None


def is_rank_of_its_own(environment: Mapping[str, str], own: Mapping[str, str] | None = None) -> bool:
    """Return whether an environment gives a process a rank of a job, and another one than that of this process.

    Args:
        environment: of the new process.
        own: of this process; by default its own.

    >>> is_rank_of_its_own({"RANK": "1", "WORLD_SIZE": "2"}, {}), is_rank_of_its_own({"PATH": "/bin"}, {})
    (True, False)
    >>> is_rank_of_its_own({"RANK": "0", "WORLD_SIZE": "2"}, {"RANK": "0", "WORLD_SIZE": "2"})
    False
    """
    job, present = read_job_environment(environment), read_job_environment(own)
    has_place = any(name in environment for name in ("RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"))
    return has_place and job.world_size > 1 and (job.rank, job.world_size) != (present.rank, present.world_size)


def recorded_words(words: Sequence[str]) -> list[str] | None:
    """Return the words that run a Python program under the recorder; ``None`` if this Python runs no program by them.

    >>> recorded_words([sys.executable, "-u", "train.py", "--lr", "1"])[1:]
    ['-u', '-mtorchx_cubicml.recorder', 'train.py', '--lr', '1']
    >>> recorded_words([sys.executable, "-c", "pass"]), recorded_words(["ls"])
    (None, None)
    """
    from torchx_cubicml.launch.launchers.table import parse_any_command
    from torchx_cubicml.launch.torchrun_command import RECORDER, recorder_words

    if not words or words[0] != sys.executable:
        return None
    try:
        parts = parse_any_command(words)
    except LaunchError:
        return None
    options = words[1 : parts.head_stop]
    if (
        parts.is_torchrun
        or parts.launcher
        or not all(map(_HARMLESS_OPTIONS.fullmatch, (word for word in options if word.startswith("-"))))
    ):
        return None
    head = words[: parts.head_stop]
    return [*head, *recorder_words(parts, RECORDER), parts.program, *words[parts.args_start :]]


def place_variables() -> dict[str, str] | None:
    """Return variables with whose values a new Python finds this package, whatever its working directory is.

    ``None`` if that is not sure.
    """
    own = child_environment({})
    if not all(map(os.path.isabs, filter(None, own.get("PYTHONPATH", "").split(os.pathsep)))):
        return None
    others = (finder for finder in sys.meta_path if finder is not PathFinder)  # that of an editable installation
    found = PathFinder.find_spec(_PACKAGE, sys.path[1:])  # the first entry is the program's folder
    if found is None and not any(map(_finds_package, others)):
        return None
    has_user_site = getattr(sys.modules.get("site"), "USER_SITE", None) in sys.path
    names = (*_PLACE_VARIABLES, *(_USER_SITE_VARIABLES if has_user_site else ()))
    return {name: own.get(name, "") for name in names}


def _finds_package(finder: object) -> bool:
    find_spec = getattr(finder, "find_spec", None)  # as Python's import does, which skips a finder without one
    try:
        return find_spec is not None and find_spec(_PACKAGE, None) is not None
    except Exception:  # noqa: BLE001 - a finder of somebody else
        return False
