"""The guard of ``guarded`` for a role that starts Python without a shell: its image may hold none.

The role's own Python asks whether the recorder can be loaded, in a child as the shell does, then becomes the recorded
command or the user's own. Commands travel word by word, so that nothing is quoted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.launch.guarded import PROBE, check_variables
from torchx_cubicml.launch.shell import with_macro_escape

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Nothing is imported that is not loaded at the start of every Python: the working directory may hold a module of any
# name. No $, which TorchX and Kubernetes would take for macros of theirs.
_GUARD = """
import os, sys
words = iter(sys.argv[1:])
def some():
    return [next(words) for _ in range(int(next(words)))]
changes, probe, wrapped, typed = some(), some(), some(), some()
picked = os.environ.get("PYTHON_EXEC") if next(words) == "picked" else None
probe = [picked, *probe[-2:]] if picked else probe
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
    told = b""
    while True:
        more = os.read(out, 4096)
        if not more:
            break
        told += more
    return os.waitpid(child, 0)[1], told.decode(errors="replace").strip()
try:
    status, why = ask()
    if not status:
        os.execvpe(wrapped[0], wrapped, dict(os.environ, **dict(change.split("=", 1) for change in changes)))
except Exception as error:
    why = str(error)
try:
    os.write(2, ("torchx-cubicml: this launch is not recorded and runs as typed, "
                 "for its Python cannot load the recorder: " + why + chr(10)).encode(errors="replace"))
except OSError:
    pass
os.execvp(typed[0], typed)
"""


def guarded_arguments(
    *,
    python: Sequence[str],
    picks_python: bool,
    wrapped: Sequence[str],
    typed: Sequence[str],
    variables: Mapping[str, str],
) -> list[str]:
    """Return arguments for a Python that runs ``wrapped`` where it finds the recorder, else ``typed``.

    Args:
        python: words that start the job's Python.
        picks_python: whether ``PYTHON_EXEC`` replaces that Python in the job.
        wrapped: words of the recorded command, as TorchX's macros stand in them.
        typed: words of the user's own command, likewise.
        variables: environment variables of the recorded command that differ from the user's own.

    Raises:
        LaunchError: a variable has no legal name.
    """
    check_variables(variables)
    changes = [with_macro_escape(f"{name}={value}") for name, value in variables.items()]
    arguments = ["-c", f"exec({_GUARD!r})"]
    for words in (changes, [*python, "-c", PROBE], wrapped, typed):
        arguments += [str(len(words)), *words]
    return [*arguments, "picked" if picks_python else "named"]
