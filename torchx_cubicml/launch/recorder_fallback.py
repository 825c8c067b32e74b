"""Fallback for a job whose machine lacks the recorder: the user's command runs as typed."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.launch.shell import quote, with_macro_escape
from torchx_cubicml.launch.torchrun_command import RECORDER
from torchx_cubicml.records.contract import CONTRACT_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


# Imports only modules that every Python loads at its start: the working directory may hold a module of any other name.
# Contains no $, which TorchX and Kubernetes would take for their macros.
_GUARD = """
import os, sys
words = iter(sys.argv[1:])
def some():
    return [next(words) for _ in range(int(next(words)))]
changes, probe, wrapped, typed = some(), some(), some(), some()
picked = os.environ.get("PYTHON_EXEC") if next(words) == "picked" else None
if picked:
    probe = [picked, *probe[-2:]]
    if "torchx_cubicml.recorder.torchrun" in wrapped:
        wrapped = [picked, *wrapped[wrapped.index("-m"):]]
def ask():
    out, into = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.dup2(into, 1)
            os.dup2(into, 2)
            os.execvp(probe[0], probe)
        except BaseException as error:
            os.write(2, str(error).encode())
        finally:
            os._exit(1)
    os.close(into)
    output = b""
    while True:
        more = os.read(out, 4096)
        if not more:
            break
        output += more
    return os.waitpid(child, 0)[1], output.decode(errors="replace").strip()
try:
    status, why = ask()
    if not status:
        os.execvpe(wrapped[0], wrapped, dict(os.environ, **dict(change.split("=", 1) for change in changes)))
except Exception as error:
    why = str(error)
try:
    os.write(2, ("torchx-cubicml: running your command as typed, without recording it: "
                 "its Python cannot load the recorder: " + why + chr(10)).encode(errors="replace"))
except OSError:
    pass
os.execvp(typed[0], typed)
"""


def fallback_arguments(
    *,
    python: Sequence[str],
    picks_python: bool,
    wrapped: Sequence[str],
    typed: Sequence[str],
    variables: Mapping[str, str],
) -> list[str]:
    """Return arguments for a Python that runs ``wrapped`` if it finds the recorder, else ``typed``.

    Args:
        python: words that start the job's Python.
        picks_python: whether ``PYTHON_EXEC`` replaces that Python in the job.
        wrapped: words of the recorded command, with TorchX's macros not yet substituted.
        typed: words of the user's own command, likewise.
        variables: environment variables of the recorded command that differ from the user's own.

    Raises:
        LaunchError: a variable has an illegal name.
    """
    check_variables(variables)
    changes = [with_macro_escape(f"{name}={value}") for name, value in variables.items()]
    arguments = ["-c", f"exec({_GUARD!r})"]
    for words in (changes, [*python, "-c", PROBE], wrapped, typed):
        arguments += [str(len(words)), *words]
    return [*arguments, "picked" if picks_python else "named"]


MAX_LINE = 100_000  # Linux limits one argument to 128 KiB; schedulers add to it

_VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)

# One line, because schedulers pass on newlines differently. Exits with 0 if the recorder can be loaded, else prints the
# reason.
PROBE = (
    "import sys; sys.excepthook = lambda kind, error, trace: print(error); "
    f"import {RECORDER}; from torchx_cubicml.records.contract import CONTRACT_VERSION as version; "
    f"sys.exit(version != {CONTRACT_VERSION} and "
    f'f"its recorder reads contract version {{version}}, this launch wrote {CONTRACT_VERSION}")'
)

# torchrun starts its workers with $PYTHON_EXEC, else with its own interpreter. That is the one in its shebang line, or
# the one in its folder if the shebang names a shell (pip and uv write such scripts for long paths).
_PYTHON_OF_TORCHRUN = (
    "cubicml_torchrun=$(command -v {torchrun}); "
    "cubicml_python=${{PYTHON_EXEC:-$("
    "sed -n '1{{s/^#! *//;s/^[^ ]*env  *//;/python/p;}};1q' \"$cubicml_torchrun\" 2>/dev/null)}}; "
    "cubicml_python=${{cubicml_python:-${{cubicml_torchrun%/*}}/python}}; "
)


def fallback_line(*, probe: str, wrapped: str, typed: str, variables: Mapping[str, str]) -> str:
    """Return a POSIX shell line that runs ``wrapped`` if ``probe`` finds the recorder, else ``typed``.

    Either command replaces the shell, so that a scheduler's signals still reach the launcher.

    Args:
        probe: result of ``probe_condition``.
        wrapped: shell text of the recorded command.
        typed: shell text of the user's own command.
        variables: environment variables of the recorded command that differ from the user's own.

    Raises:
        LaunchError: a variable has an illegal name, or the line is too long for one argument of a process.
    """
    check_variables(variables)
    exports = "".join(f"export {name}={quote(value)}; " for name, value in variables.items())
    line = (
        f"{probe}then {exports}exec {wrapped}; fi; "
        "printf '%s\\n' \"torchx-cubicml: running your command as typed, without recording it: "
        'its Python cannot load the recorder: $cubicml_why" >&2; '
        f"exec {typed}"
    )
    n_bytes = len(line.encode(errors="surrogateescape"))  # a file name can be any bytes
    if n_bytes > MAX_LINE:
        raise LaunchError(f"the recorded command has {n_bytes} bytes; the limit is {MAX_LINE}")
    return line


def check_variables(names: Iterable[str]) -> None:
    """Check names of environment variables.

    Raises:
        LaunchError: a name is illegal.
    """
    illegal = [name for name in names if not _VARIABLE.fullmatch(name)]
    if illegal:
        raise LaunchError(f"invalid environment variable name {illegal[0]!r:.60}; use letters, digits and _")


def probe_condition(*, torchrun: str | None = None, python: str | None = None, honours_override: bool = False) -> str:
    """Return the start of a shell ``if`` that tests whether the job's Python can load the recorder.

    Args:
        torchrun: shell text of the word that starts torchrun; ``None`` if a Python is named.
        python: shell text of the words that start the job's Python; ``None`` if torchrun selects it.
        honours_override: whether ``PYTHON_EXEC`` replaces that Python in the job.
    """
    found, words = job_python(torchrun=torchrun, python=python, honours_override=honours_override)
    return f"{found}if cubicml_why=$({words} -c {shlex.quote(PROBE)} 2>&1); "


def job_python(
    *, torchrun: str | None = None, python: str | None = None, honours_override: bool = False
) -> tuple[str, str]:
    """Return shell text that finds the job's Python, and the shell text of the words that start it.

    Args:
        torchrun: as for ``probe_condition``.
        python: likewise.
        honours_override: likewise.
    """
    if torchrun is not None:
        return _PYTHON_OF_TORCHRUN.format(torchrun=torchrun), '"$cubicml_python"'
    return "", f"${{PYTHON_EXEC:-{python}}}" if honours_override else str(python)
