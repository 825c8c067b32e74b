"""Job of a second that tells which Python a launch's job runs, what is installed there, and whether it sees the store.

It takes the place of the training in the user's own component: the same image, variables and Python, one process.
"""

from __future__ import annotations

import copy
import json
import math
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.launch.component import ComponentLaunch
from torchx_cubicml.launch.recorder_fallback import job_python
from torchx_cubicml.launch.shell import join
from torchx_cubicml.launch.torchrun_command import RECORDER
from torchx_cubicml.settings import PREFIX
from torchx_cubicml.store.probe import StoreProbe

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torchx.specs import AppDef

_MARK = "CUBICML_DOCTOR "
_MEMORY_MB = 1024
_STORE = f"{PREFIX}STORE"
_MAX_TEXT = 2000  # characters of one text that a job reports

# Runs in a Python of any version, with nothing installed. Contains no $, which TorchX would take for a macro.
_SCRIPT = f"""
import json, os, sys, time
found = dict(python=".".join(map(str, sys.version_info[:3])), executable=sys.executable, time=time.time())
try:
    from importlib.metadata import version
    for name in ("torch", "torchx-cubicml"):
        try:
            found[name] = version(name)
        except Exception:
            pass
    import {RECORDER}
    from torchx_cubicml.records.contract import CONTRACT_VERSION
    found["contract"] = CONTRACT_VERSION
    from torchx_cubicml.store.probe import probe_store
    probe = probe_store(os.environ[{_STORE!r}], writes=WRITES)
    found["presence"], found["obstacle"] = probe.presence, probe.obstacle
    found["is_written"], found["clock_offset_s"] = probe.is_written, probe.clock_offset_s
except BaseException as error:
    found["error"] = str(error) or type(error).__name__
sys.stderr.write(chr(10) + {_MARK!r} + json.dumps(found) + chr(10))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport:
    """Report of the job.

    Args:
        python: version of its Python.
        executable: path of that Python.
        time: its clock, in seconds since 1970.
        versions: package -> installed version.
        contract: version of the contract that its recorder reads; ``None`` where the recorder cannot be loaded.
        error: reason why it cannot be loaded, or why the store was not probed; empty without one.
        store: probe of the store from there; ``None`` where it was not probed.
    """

    python: str
    executable: str
    time: float
    versions: dict[str, str]
    contract: int | None
    error: str
    store: StoreProbe | None


def job_probe(component: ComponentLaunch | None, *, store: str, writes: bool) -> AppDef:
    """Return the app of the job.

    Args:
        component: the user's component; ``None`` for torchrun in TorchX's ``dist.ddp``.
        store: URL of the store.
        writes: whether the job may write a probe to the store, which it removes.

    Raises:
        LaunchError: the component starts no training that can be recorded.
    """
    made = component or ComponentLaunch.parse("dist.ddp", ["-j", "1x1", "-m", "torchx_cubicml"])
    command = made.command
    if command is None:
        raise LaunchError(f"{made.source.component} cannot be recorded: {made.why_not_recorded}")
    app = copy.deepcopy(made.source.app)
    role = app.roles[made.role]
    python = join(command.words[command.parts.python]) if command.parts.python is not None else None
    found, words = job_python(
        torchrun=command.words[0].text if python is None else None,
        python=python,
        honours_override=command.is_torchrun,
    )
    script = f"exec({_SCRIPT.replace('WRITES', str(writes))!r})"  # one line: schedulers pass on newlines differently
    shell, option = command.shell or ("sh", "-c")
    role.entrypoint, role.args = shell, [option, f"{found}exec {words} -c {shlex.quote(script)}"]
    role.env[_STORE] = store
    role.num_replicas, role.min_replicas, role.max_retries = 1, None, 0
    role.resource = copy.copy(role.resource)
    role.resource.cpu, role.resource.gpu, role.resource.memMB = 1, 0, _MEMORY_MB
    app.roles = [role]
    return app


def job_report(lines: Iterable[str]) -> JobReport | None:
    """Return the report in the lines that a job wrote to stderr; ``None`` without one.

    >>> job_report(["CUBICML_DOCTOR {"]) is None
    True
    """
    for line in lines:
        _, mark, text = line.partition(_MARK)
        if not mark:
            continue
        try:
            return _from_json(json.loads(text))
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            continue  # a line of the same beginning, or one that is cut
    return None


def _from_json(payload: dict[str, object]) -> JobReport:
    def text(name: str) -> str:
        return str(payload.get(name) or "")[:_MAX_TEXT]

    store, offset, contract = None, payload.get("clock_offset_s"), payload.get("contract")
    if "presence" in payload:
        store = StoreProbe(
            presence=text("presence"),
            obstacle=text("obstacle"),
            is_written=payload.get("is_written") is True,
            clock_offset_s=_finite(offset) if offset is not None else None,
        )
    return JobReport(
        python=text("python"),
        executable=text("executable"),
        time=_finite(payload["time"]),
        versions={name: text(name) for name in ("torch", "torchx-cubicml") if text(name)},
        contract=contract if isinstance(contract, int) else None,
        error=text("error"),
        store=store,
    )


def _finite(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"no finite number: {value!r:.40}")
    return float(value)
