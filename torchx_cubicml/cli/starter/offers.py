"""Comments of a starter space file on what the user may add: arguments of unknown meaning, variables, hooks, lines."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from torchx_cubicml.cli.starter.meanings import ScriptFlag, may_change_speed_alone
from torchx_cubicml.cli.starter.toml_text import NO_FLAG, parameter_table, switch_choices
from torchx_cubicml.launch.command_facts.local_device import local_device
from torchx_cubicml.launch.scheduler import is_on_this_machine
from torchx_cubicml.recorder.apply.hooks import OfferedProgram, hook_classes
from torchx_cubicml.records.log_pattern import THROUGHPUT_READINGS
from torchx_cubicml.records.trial import State
from torchx_cubicml.settings import child_environment
from torchx_cubicml.space.expression import is_name
from torchx_cubicml.space.spelling import number

if TYPE_CHECKING:
    import ast
    from collections.abc import Collection, Iterable, Sequence

    from torchx_cubicml.cli.starter.from_launches import RecordedLaunches
    from torchx_cubicml.launch import Launch
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Scalar

_MAX_OFFERS = 8
_VARIABLE = "OMP_NUM_THREADS"
_NOTES = "https://docs.pytorch.org/docs/stable/notes"
_THREADS = f"[parameters.omp_num_threads] # threads of each process: {_NOTES}/cpu_threading_torchscript_inference.html"
_ALLOCATOR = [
    f"[parameters.cuda_allocator] # segments that grow leave fewer gaps in a full memory: {_NOTES}/cuda.html",
    'choices = ["expandable_segments:False", "expandable_segments:True"]',
    'env = "PYTORCH_CUDA_ALLOC_CONF"',  # torch 2.9.1 ignores its newer name, PYTORCH_ALLOC_CONF
    'default = "expandable_segments:False"',
]


def offer_lines(flags: Sequence[ScriptFlag]) -> list[str]:
    """Return the commented tables of flags that may change the speed alone, as far as their names and values tell."""
    found = [
        flag
        for flag in flags
        if flag.value
        and not (flag.meaning or flag.evidence or flag.destination or flag.file)
        and may_change_speed_alone(flag.name, flag.value, is_typed=flag.present is not None)
    ]
    taken = {flag.meaning for flag in flags}
    named: dict[str, ScriptFlag] = {}
    for flag in sorted(found, key=lambda flag: flag.present is None)[:_MAX_OFFERS]:
        named.setdefault(_name(flag.name, taken.union(named)), flag)
    tables = [
        parameter_table(replace(flag, meaning=name), choices=_choices(flag)) for name, flag in named.items() if name
    ]
    head = "Of unknown meaning. Uncomment what changes only the speed, and list the values to try:"
    return [f"# {line}" for line in (head, *chain(*tables))] if tables else []


def _name(flag: str, used: Collection[str]) -> str:
    """Return a parameter's name from the last part of a flag, or from all of it; empty where neither is a free name."""
    whole = flag.strip("-+=").replace("-", "_").replace(".", "_")
    last = flag.strip("-+=").rpartition(".")[2].replace("-", "_")
    return next((name for name in (last, whole) if is_name(name) and len(name) <= 64 and name not in used), "")


def _choices(flag: ScriptFlag) -> list[Scalar]:
    count = number(flag.value or "")
    if flag.choices or not count:
        return switch_choices(flag)
    return sorted({max(int(count) // 2, 1), int(count), 2 * int(count)})


def variable_lines(launch: Launch, recorded: RecordedLaunches, *, is_needed: bool) -> list[str]:
    """Return the lines of a parameter that is an environment variable.

    On CUDA it is the allocator's, as a comment unless it is needed. Elsewhere it is the number of threads, if needed.

    Args:
        launch: the command.
        recorded: launches of the same program.
        is_needed: whether the file has no other parameter with several values.
    """
    here = local_device(launch).get("device")  # of NVIDIA, unless it is the processor
    seen = {name for trial in recorded.trials for name in trial.observed}
    is_on_cuda = "compute_capability" in seen or (here is not None and here.value != "cpu")
    if not is_needed:
        return [f"# {line}" for line in _ALLOCATOR] if is_on_cuda else []
    default = None if is_on_cuda else _n_threads(launch, recorded)
    if default is None:
        return [NO_FLAG, *_ALLOCATOR]
    choices = f"choices = {sorted({1, 2, 4, default})}"
    return [NO_FLAG, _THREADS, choices, f'env = "{_VARIABLE}"', f"default = {default} # without the variable"]


def _n_threads(launch: Launch, recorded: RecordedLaunches) -> int | None:
    """Return the threads of each process of a command as it stands; ``None`` where they are not known."""
    for trial in reversed(recorded.trials):
        shown, size = trial.observed.get("n_threads"), trial.observed.get("world_size")
        if isinstance(shown, int) and size == launch.world_size and f"${_VARIABLE}" not in (trial.digests or ()):
            return shown
    is_here, n_processes = is_on_this_machine(launch.scheduler), launch.nproc_per_node or launch.world_size
    exported = child_environment({}).get(_VARIABLE, "") if is_here else ""
    if launch.launcher or n_processes is None or (n_processes == 1 and not is_here):
        return None
    if n_processes > 1:
        return int(exported) if exported.isdecimal() else 1  # as torchrun sets it
    import torch

    return torch.get_num_threads()


def hook_lines(
    trees: Sequence[ast.Module], names: Collection[str], flags: Sequence[ScriptFlag], trials: Sequence[Trial] = ()
) -> list[str]:
    """Return the commented parameters that hooks can set; none for a script without calls that a hook changes.

    Args:
        trees: syntax trees of the program's source files.
        names: full names that they import or mention.
        flags: of the command and its script; what one of them sets is not offered.
        trials: recorded launches of the program; the latest that knows its embedding tables counts them.
    """
    taken = {flag.meaning: flag.value or "" for flag in flags}
    program = OfferedProgram(trees=trees, names=names, taken=taken, trials=trials)
    found = []
    for hook in hook_classes():
        choices, lines = hook.offer(program)
        place = ScriptFlag(name=hook.name, meaning=hook.fact or hook.name, place="hook")
        words = {word for group in hook.values for word in group} if hook.per == "table" else set()
        stated = next(
            (
                flag
                for flag in flags
                if flag.meaning == "sharding_strategy" and words.issuperset((flag.value or " ").split(","))
            ),
            None,
        )
        if (choices or lines) and place.meaning not in taken:
            shown = place if stated is None else replace(stated, meaning=place.meaning)
            found.append(parameter_table(shown, choices=shown.choices or choices, lines=lines))
    head = "What no flag sets, a hook can set inside the job; the first launch of a tune tells whether it serves:"
    return [f"# {line}" for line in (head, *chain(*found))] if found else []


def log_lines(trials: Iterable[Trial]) -> list[str]:
    """Return the comment on how to declare log lines, for a program whose recorded launches have no throughput."""
    ended = [trial for trial in trials if trial.state is State.COMPLETED]
    if not ended or any(trial.measurement is not None for trial in ended):
        return []
    return [
        "# No recorded launch of this program has a throughput: no optimizer steps were seen, or too few. If it prints",
        "# its speed, declare the line, with a group of one of these names:",
        f"# {', '.join(THROUGHPUT_READINGS)}",
        "# [log]",
        "# pattern = 'speed: (?P<samples_per_second>[\\d.]+) samples/s'",
    ]
