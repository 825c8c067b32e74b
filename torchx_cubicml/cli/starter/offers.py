"""Comments of a starter space file on what the user may add: arguments of unknown meaning, variables, hooks, lines."""

from __future__ import annotations

import ast
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from torchx_cubicml.cli.starter.meanings import ScriptFlag, may_change_speed_alone
from torchx_cubicml.cli.starter.toml_text import NO_FLAG, listed, parameter_table, switch_choices
from torchx_cubicml.launch.bindings.spelling import number
from torchx_cubicml.launch.command_facts.local_device import local_device
from torchx_cubicml.launch.command_facts.source_literals import call_keywords
from torchx_cubicml.launch.scheduler import is_on_this_machine
from torchx_cubicml.launch.source_files import dotted, nodes_of
from torchx_cubicml.records.axis_names import mesh_axis
from torchx_cubicml.records.hook_table import AS_PLANNED, HOOK_CALLS, HOOK_RIVALS, HOOKED_FACTS, HOOKS
from torchx_cubicml.records.log_pattern import THROUGHPUT_READINGS
from torchx_cubicml.records.trial import State
from torchx_cubicml.settings import child_environment
from torchx_cubicml.space.expression import is_name

if TYPE_CHECKING:
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
_RECOMPUTES = "activation_checkpointing"


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
    tables = [count for trial in trials if (count := trial.fact("n_embedding_tables")) is not None]
    per_layer = ['per_layer = "n_layers"'] if taken.get("n_layers", "").isdecimal() else []
    n_strategies = 3 if any(name.endswith("FullyShardedDataParallel") for name in names) else 2  # FSDP2 has no NO_SHARD
    asked = "number of tables" if tables else "write the number of tables here"
    per_table = f"per_table = {[1, *tables][-1]} # {asked}; with groups = 2, one choice for each half of them"
    modules = _modules(trees)
    blocks: dict[str, tuple[Sequence[Scalar], list[str]]] = {
        "fsdp": (HOOKS["fsdp"][0][:n_strategies], per_layer),
        _RECOMPUTES: (HOOKS[_RECOMPUTES][0], per_layer),
        "torchrec": (HOOKS["torchrec"][0][:5], [per_table]),
        "mesh": ((), _mesh(trees, taken, trials)),
        "parallelize_module": ((AS_PLANNED, "replicated") if modules else (), modules),
        "sequence_parallel": (HOOKS["sequence_parallel"][0], []),
    }
    sharding = HOOKED_FACTS["fsdp"]
    places = {hook: ScriptFlag(name=hook, meaning=HOOKED_FACTS.get(hook, hook), place="hook") for hook in blocks}
    stated = next((each for each in flags if each.meaning == sharding and each.value in HOOKS["torchrec"][0]), None)
    if stated is not None:
        places["torchrec"] = replace(stated, meaning=places["torchrec"].meaning)
    called = _called(names, has_tables=bool(tables))
    found = [
        parameter_table(places[hook], choices=choices, lines=lines)
        for hook, (choices, lines) in blocks.items()
        if (choices or lines) and hook in called and places[hook].meaning not in taken
    ]
    head = "What no flag sets, a hook can set inside the job; the first launch of a tune tells whether it serves:"
    return [f"# {line}" for line in (head, *chain(*found))] if found else []


def _called(names: Collection[str], *, has_tables: bool) -> set[str]:
    """Return the hooks whose calls a program mentions; recomputation goes with FSDP, unless something rivals it."""
    calls = {name.rpartition(".")[2] for name in names}
    called = {hook for hook, each in HOOK_CALLS.items() if not calls.isdisjoint(each.names)}
    if has_tables or any(name.partition(".")[0] == "torchrec" for name in names):
        called.add("torchrec")
    is_rivalled = any(rival in name.lower() for name in names for rival in HOOK_RIVALS[_RECOMPUTES])
    return called | {_RECOMPUTES} if "fsdp" in called and not is_rivalled else called


def _mesh(trees: Iterable[ast.Module], taken: Collection[str], trials: Iterable[Trial]) -> list[str]:
    """Return the axes of the only mesh of several axes in a source; nothing where names do not tell what they are."""
    found = {given.get("mesh_dim_names") for tree in trees for _, given in call_keywords(tree)}
    names = [each for each in found if isinstance(each, tuple) and len(each) > 1]
    axes = [mesh_axis(str(name)) for name in names[0]] if len(names) == 1 else [""]
    if "" in axes or len({*axes}) < len(axes) or any(f"{axis}_degree" in taken for axis in axes):
        return []
    rest = next((axis for axis in ("dp_shard", "dp", "dp_replicate") if axis in axes), "")
    known = {axis: size for trial in trials for axis in axes if (size := trial.fact(f"{axis}_degree")) is not None}
    sizes = {axis: known.get(axis, 1) for axis in axes if axis != rest}
    asked = "as recorded" if sizes.keys() <= known.keys() else "write the script's own sizes here"
    default = ", ".join(f"{axis} = {size}" for axis, size in sizes.items())
    return [f"mesh = [{listed(axes)}]", f"default = {{ {default} }} # {asked}"]


def _modules(trees: Iterable[ast.Module]) -> list[str]:
    """Return the column- and row-wise modules of the largest tensor-parallel plan in a source; nothing without one."""
    plans = [
        [
            str(key.value)
            for key, style in zip(plan.keys, plan.values, strict=True)
            if isinstance(key, ast.Constant) and dotted(getattr(style, "func", style)).endswith("wiseParallel")
        ]
        for plan in (node for tree in trees for node in nodes_of(tree) if isinstance(node, ast.Dict))
    ]
    largest = max(plans, key=len, default=[])
    return [f"modules = [{listed(largest)}] # keep those that go together"] if largest else []


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
