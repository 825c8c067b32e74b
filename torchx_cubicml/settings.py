"""Settings from environment variables: the only module that reads the process environment."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torchx_cubicml.errors import StoreError
from torchx_cubicml.records.contract import CONTRACT_VARIABLE
from torchx_cubicml.records.standard_words import ON_WORDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

PREFIX = "TORCHX_CUBICML_"
ATTEMPT_VARIABLE = f"{PREFIX}ATTEMPT_FOLDER"
STARTER_VARIABLE = f"{PREFIX}STARTER"
"""Variable by which a process that starts ranks of its own names itself to them; see ``RankStarter``."""
KEEP_COMMAND = "keep_command"  # option
PRINT_TRIAL = "print_trial"  # option: the job prints its trial, wherever it is recorded
DEFAULT_STORE = "~/.torchx-cubicml"
COMPONENT_OPTIONS = ("space", "store", "mode", KEEP_COMMAND)
"""Options of the component, which ``[component:cubicml]`` of ``.torchxconfig`` may set, too."""
USER_OPTIONS = (
    *COMPONENT_OPTIONS,
    *(PRINT_TRIAL, "think_deadline_s", "decision_deadline_s", "write_deadline_s", "cache", "public_prior"),
)
"""Options that a user may set as ``TORCHX_CUBICML_<NAME>``."""
# scikit-learn and threadpoolctl set them where they are not set; a job that inherited them would not run as typed.
_NOT_SET_AT_START = tuple(name for name in ("KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK") if name not in os.environ)
_AT_START = Path("/proc/self/environ")  # where the system has it; without LC_CTYPE, which Python sets in the C locale
if _AT_START.exists() and not any(each.startswith(b"LC_CTYPE=") for each in _AT_START.read_bytes().split(b"\0")):
    _NOT_SET_AT_START += ("LC_CTYPE",)
_TEMPORARY_VARIABLES = ("TMPDIR", "SLURM_TMPDIR", "PBS_JOBFS", "LOCAL_SCRATCH")
_CACHES_OF_LIBRARIES = (
    *("HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "TORCH_HOME", "TORCH_EXTENSIONS_DIR", "TRITON_CACHE_DIR"),
    *("TORCHINDUCTOR_CACHE_DIR", "XDG_CACHE_HOME"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnvironment:
    """Environment of a job's process, as torchrun, TorchX and the scheduler set it.

    Args:
        contract: encoded contract of the launch; empty where there is none.
        rank: global rank, 0 without torchrun.
        local_rank: rank on this node.
        world_size: processes of the job.
        nnodes: nodes of the job.
        node: index of this node.
        torchx_job_id: ``<scheduler>://<session>/<app id>`` as TorchX sets it; empty without TorchX.
        scheduler_job_id: the scheduler's name of the job, such as ``slurm-1234``; empty where unknown.
        attempt: scheduler restart count, torchelastic restart count.
        store_address: host and port of the agent's TCPStore (rendezvous); ``None`` where torchrun hosts none.
        cluster: the scheduler's name of the cluster, as job numbers are unique only within it; else the host that
            submitted the job, the same for all its processes; empty where unknown.
        partition: Slurm's partition of the job; empty where there is none.
        run_id: torchrun's name of the launch; empty without torchrun.
        run_folder: log folder of the launch that this node's agent keeps across attempts; empty where unknown.
        stderr_file: file to which torchrun redirects this process's stderr, if redirection is on; empty without
            torchrun.
        ends_at: end of the job by the scheduler's time limit, as set at its start, in seconds since 1970; 0 where
            unknown.
        is_batch_job: whether Slurm or Kubernetes runs the job.
        step: Slurm's name of the job's step, such as ``1234.0``; empty outside of Slurm.
        step_process: id of the process that Slurm started for this task of the step; 0 outside of Slurm.
        temporary: folders that the scheduler may clear at the end of the job.
        attempt_folder: folder for notes of a rewritten launch, which is started as typed if it fails early; empty for
            other launches.
        starter: encoded ``RankStarter`` of a process that a recorded one has started as a rank; empty for others.
    """

    contract: str
    rank: int
    local_rank: int
    world_size: int
    nnodes: int
    torchx_job_id: str
    scheduler_job_id: str
    attempt: tuple[int, int]
    store_address: tuple[str, int] | None
    cluster: str = ""
    partition: str = ""
    run_id: str = ""
    run_folder: str = ""
    stderr_file: str = ""
    ends_at: int = 0
    attempt_folder: str = ""
    node: int = 0
    is_batch_job: bool = False
    step: str = ""
    step_process: int = 0
    temporary: tuple[str, ...] = ()
    starter: str = ""


def read_job_environment(environment: Mapping[str, str] | None = None) -> JobEnvironment:
    """Read the job environment of this process.

    Args:
        environment: replaces the environment of the process.
    """
    source = environment if environment is not None else os.environ
    host, port = source.get("MASTER_ADDR", ""), _count(source, "MASTER_PORT", 0)
    # Otherwise the training opens the store itself, at a time unknown outside of it.
    is_agent_store = source.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    slurm_job = source.get("SLURM_JOB_ID", "")
    place = _rank_of(source)
    error_file = source.get("TORCHELASTIC_ERROR_FILE", "")
    return JobEnvironment(
        contract=source.get(CONTRACT_VARIABLE, ""),
        rank=place.rank,
        local_rank=place.local_rank,
        world_size=place.world_size,
        nnodes=place.nnodes,
        torchx_job_id=source.get("TORCHX_JOB_ID", ""),
        scheduler_job_id=f"slurm-{slurm_job}" if slurm_job else "",
        attempt=(_scheduler_restarts(source), _count(source, "TORCHELASTIC_RESTART_COUNT", 0)),
        store_address=(host, port) if host and port and is_agent_store else None,
        cluster=source.get("SLURM_CLUSTER_NAME", "") or source.get("SLURM_SUBMIT_HOST", ""),
        partition=source.get("SLURM_JOB_PARTITION", ""),
        run_id=source.get("TORCHELASTIC_RUN_ID", ""),
        run_folder=_run_folder(error_file),
        stderr_file=f"{error_file.rpartition('/')[0]}/stderr.log" if "/" in error_file else "",
        ends_at=_count(source, "SLURM_JOB_END_TIME", 0),
        attempt_folder=source.get(ATTEMPT_VARIABLE, ""),
        node=place.node,
        is_batch_job=bool(slurm_job or source.get("KUBERNETES_SERVICE_HOST")),
        step=f"{slurm_job}.{source.get('SLURM_STEP_ID', 'batch')}" if slurm_job else "",
        step_process=_count(source, "SLURM_TASK_PID", 0) if slurm_job else 0,
        temporary=tuple(filter(None, map(source.get, _TEMPORARY_VARIABLES))),
        starter=source.get(STARTER_VARIABLE, ""),
    )


def option(name: str, environment: Mapping[str, str] | None = None) -> str | None:
    """Return ``TORCHX_CUBICML_<NAME>``, the fallback of a command-line option; ``None`` where unset.

    >>> option("store", {"TORCHX_CUBICML_STORE": "s3://team/cubicml"})
    's3://team/cubicml'
    """
    source = environment if environment is not None else os.environ
    return source.get(f"{PREFIX}{name.upper()}") or None


def own_variables(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment variables of this package, spelled rightly or not, with their values.

    >>> own_variables({"TORCHX_CUBICML_STROE": "/data", "HOME": "/root"})
    {'TORCHX_CUBICML_STROE': '/data'}
    """
    source = environment if environment is not None else os.environ
    found = {name: value for name, value in source.items() if "CUBICML_" in name.upper()}
    return {name: found[name] for name in sorted(found)}


def seconds_option(name: str, default: float, environment: Mapping[str, str] | None = None) -> float:
    """Return an option as seconds, between 0 and an hour; the default where it is unset or out of range.

    >>> seconds_option("think_deadline_s", 10.0, {"TORCHX_CUBICML_THINK_DEADLINE_S": "30"})
    30.0
    """
    try:
        seconds = float(option(name, environment) or default)
    except ValueError:
        return default
    return seconds if 0 < seconds < 3600 else default


def is_on(text: str | None) -> bool:
    """Return whether the text of an option switches it on.

    >>> is_on("yes"), is_on("0"), is_on(None)
    (True, False, False)
    """
    return (text or "").lower() in ON_WORDS


def columns(environment: Mapping[str, str] | None = None) -> int | None:
    """Return ``COLUMNS``, the width that lines are to have; ``None`` where it is unset.

    >>> columns({"COLUMNS": "80"}), columns({"COLUMNS": "wide"})
    (80, None)
    """
    return _count(environment if environment is not None else os.environ, "COLUMNS", 0) or None


def visible_devices(environment: Mapping[str, str] | None = None) -> str | None:
    """Return ``CUDA_VISIBLE_DEVICES``; ``None`` where unset."""
    return (environment if environment is not None else os.environ).get("CUDA_VISIBLE_DEVICES")


def cache_folders_of_libraries(environment: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return the absolute paths of the cache folders that variables of libraries name, such as ``HF_HOME``.

    >>> cache_folders_of_libraries({"HF_HOME": "/scratch/hf/", "TORCH_HOME": ""})
    ('/scratch/hf',)
    """
    source = environment if environment is not None else os.environ
    named = (source.get(name, "") for name in _CACHES_OF_LIBRARIES)
    return tuple(os.path.abspath(os.path.expanduser(path)) for path in named if path)  # noqa: PTH100, PTH111 - as hooked


def accelerate_config_file(environment: Mapping[str, str] | None = None) -> Path | None:
    """Return the config file that accelerate reads where its command names none; ``None`` where there is none."""
    source = environment if environment is not None else os.environ
    caches = source.get("XDG_CACHE_HOME", "~/.cache")
    folder = Path(os.path.expanduser(source.get("HF_HOME", os.path.join(caches, "huggingface"))), "accelerate")  # noqa: PTH111, PTH118 - as accelerate spells it
    found = [folder / f"default_config.{kind}" for kind in ("yaml", "json")]
    return next((path for path in found if path.is_file()), None)


def child_environment(changes: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment with ``changes``, for a child process, without what our libraries have set."""
    own = {name: text for name, text in os.environ.items() if name not in _NOT_SET_AT_START}
    return {**own, **changes}


@contextmanager
def environment_for_children() -> Iterator[None]:
    """Take what our libraries have set out of this process's environment, while others start children of it."""
    taken = {name: os.environ.pop(name) for name in _NOT_SET_AT_START if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(taken)


def forget_variables_of_libraries() -> None:
    """Remove what our libraries have set in this process's environment, before others start a user's job in it."""
    unset(_NOT_SET_AT_START)


def export(changes: Mapping[str, str]) -> None:
    """Set variables in this process's environment, for the program that it runs next."""
    os.environ.update(changes)


def unset(names: Iterable[str]) -> None:
    """Remove variables from this process's environment."""
    for name in names:
        os.environ.pop(name, None)


def default_store_url() -> str:
    """Return the path of the default store.

    Raises:
        StoreError: this process has no home directory.
    """
    try:
        return str(Path(DEFAULT_STORE).expanduser())
    except RuntimeError as error:
        raise StoreError(
            f"no home directory for the default store {DEFAULT_STORE}; set TORCHX_CUBICML_STORE"
        ) from error


def cache_folder(environment: Mapping[str, str] | None = None) -> Path | None:
    """Return the cache folder, for results that can be recomputed; ``None`` for no cache.

    It is ``TORCHX_CUBICML_CACHE`` (``off`` for no cache), else this package's folder in the user's cache folder.

    >>> str(cache_folder({"XDG_CACHE_HOME": "/data/cache"})), cache_folder({"TORCHX_CUBICML_CACHE": "off"})
    ('/data/cache/torchx-cubicml', None)
    """
    source = environment if environment is not None else os.environ
    named = option("cache", source)
    if named is not None:
        return None if named == "off" else Path(named).absolute()
    caches = Path(source.get("XDG_CACHE_HOME", ""))
    try:
        return (caches if caches.is_absolute() else Path("~/.cache").expanduser()) / "torchx-cubicml"
    except RuntimeError:  # no home directory
        return None


def ranks_of_node(world_size: int, environment: Mapping[str, str] | None = None) -> int | None:
    """Return the ranks of this job on this node; ``None`` where its launcher does not tell them.

    Args:
        world_size: of the job.
        environment: used in place of the process's own.
    """
    source = os.environ if environment is None else environment
    told = _count(source, "LOCAL_WORLD_SIZE", _count(source, "OMPI_COMM_WORLD_LOCAL_SIZE", 0))
    is_one_process = _rank_of(source).world_size == 1  # which may have started the others
    return told or (world_size if is_one_process else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Place of a process in its job, as in ``JobEnvironment``."""

    rank: int
    local_rank: int
    world_size: int
    nnodes: int
    node: int


def _rank_of(source: Mapping[str, str]) -> _Place:
    """Return the place of this process, by the variables of the launcher that has set any."""
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_WORLD_SIZE", "GROUP_RANK")
    if "RANK" in source or "WORLD_SIZE" in source:
        if "CROSS_SIZE" in source:  # DeepSpeed's launcher
            names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "CROSS_SIZE", "CROSS_RANK")
        elif (
            "RANK" not in source and "LOCAL_RANK" in source and source.get("NODE_RANK", "0") == "0"
        ):  # Lightning, whose first node has the first ranks
            names = ("LOCAL_RANK", "LOCAL_RANK", "WORLD_SIZE", "", "NODE_RANK")
    elif "OMPI_COMM_WORLD_RANK" in source:  # Open MPI; it gives no index of the node
        world = "OMPI_COMM_WORLD"
        names = (f"{world}_RANK", f"{world}_LOCAL_RANK", f"{world}_SIZE", "OMPI_MCA_orte_num_nodes", "")
    elif "SLURM_STEP_NUM_TASKS" in source:  # srun sets it, and a batch script lacks it
        names = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_NODES", "SLURM_NODEID")
    rank, local_rank, world_size, nnodes, node = names
    return _Place(
        rank=_count(source, rank, 0),
        local_rank=_count(source, local_rank, 0),
        world_size=_count(source, world_size, 1),
        nnodes=_count(source, nnodes, 1),
        node=_count(source, node, 0),
    )


def _scheduler_restarts(source: Mapping[str, str]) -> int:
    """Return the number of restarts of this job by its scheduler; AWS Batch numbers its attempts from 1."""
    return _count(source, "SLURM_RESTART_COUNT", max(_count(source, "AWS_BATCH_JOB_ATTEMPT", 1) - 1, 0))


def _run_folder(error_file: str) -> str:
    # <folder>/attempt_<number>/<local rank>/error.json
    folder, separator, rest = error_file.rpartition("/attempt_")
    return folder if separator and rest.endswith("/error.json") else ""


def _count(source: Mapping[str, str], name: str, default: int) -> int:
    text = source.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else default
