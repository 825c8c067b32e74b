"""Forks of this process, which has loaded torch, become the programs that its standard input asks for.

Each line is a request in JSON, the arguments of ``become``. Nothing of ours is loaded before. Of a program, its folder
has ``pid``, ``stdout``, ``stderr`` and, once it has ended, ``code``.
"""

import gc
import json
import os
import runpy
import sys
import traceback
from importlib import import_module
from pathlib import Path

import torch._dynamo
import torch.distributed.fsdp
import torch.distributed.run
import torch.distributed.tensor.parallel  # noqa: F401 - once for all: these imports take seconds

MAINS = {"torchrun": "torch.distributed.run", "cubicrun": "torchx_cubicml.cubicrun"}


def main():
    gc.freeze()  # else each fork would look through all that is loaded, and copy its memory
    for line in sys.stdin:
        asked = json.loads(line)
        if os.fork():
            continue
        program = os.fork()
        if not program:
            become(**asked)
            return  # and this process ends as Python does
        folder = Path(asked["folder"])
        (folder / "pid").write_text(str(program))
        code = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
        (folder / "code.part").write_text(str(code))
        (folder / "code.part").rename(folder / "code")
        os._exit(0)


def become(words, env, cwd, folder):
    """Run ``torchrun``, ``cubicrun`` or ``python`` with its words, and the streams and variables of a program."""
    for number, path in enumerate((os.devnull, f"{folder}/stdout", f"{folder}/stderr")):
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, number)
        os.close(file)
    os.chdir(cwd)
    take_variables(env)
    os.execvpe = go_on
    name, *rest = words
    if name == "python":
        run_python(rest)
    else:
        sys.argv[:] = words
        import_module(MAINS[name]).main()


def take_variables(env):
    os.environ.clear()
    os.environ.update(env)


def run_python(words):
    """Run ``python -m MODULE`` or ``python SCRIPT``."""
    if words[0] == "-m":
        sys.path.insert(0, str(Path.cwd()))
        sys.argv[:] = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(words[0]).parent))
        sys.argv[:] = words
        runpy.run_path(words[0], run_name="__main__")


def go_on(_file, command, env):
    """Run ``python -P -c CODE`` or ``-P -m MODULE`` in this process, where a launcher replaces itself with that."""
    python, switch, kind, program, *words = command
    assert (python, switch) == (sys.executable, "-P")
    take_variables(env)
    sys.argv[:], sys.orig_argv[:] = [kind, *words], command
    try:
        if kind == "-c":
            exec(program, {"__name__": "__main__"})
        else:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
    except Exception:  # noqa: BLE001 - the launcher would catch it
        traceback.print_exc()
        sys.exit(1)
    sys.exit()


main()
