"""Records one program again and again, each time with another function of the recorder broken, in a fork of its own.

The arguments are the program, then a folder and a function for each recording: ``steps.training:Training.step``.
"""

import gc
import os
import runpy
import sys
from pathlib import Path

import torch
import torch._dynamo  # noqa: F401 - once for all: these imports take seconds


def fail(*args, **kwargs):
    raise RuntimeError("injected with password=hunter2")


def record(program, folder, broken):
    os.environ["TORCHX_CUBICML_STORE"] = f"{folder}/store"
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(f"{folder}/{name}", os.O_CREAT | os.O_WRONLY), number)
    module, _, path = broken.partition(":")
    exec(f"import torchx_cubicml.recorder.{module} as module\nmodule.{path} = fail", {"fail": fail})
    sys.argv[1:] = ["--", program]
    runpy.run_module("torchx_cubicml.recorder", run_name="__main__", alter_sys=True)


gc.freeze()  # else each fork would look through all that is loaded, and copy its memory
_, program, *pairs = sys.argv
for folder, broken in zip(pairs[::2], pairs[1::2], strict=True):
    child = os.fork()
    if child == 0:
        record(program, folder, broken)
        sys.exit()
    Path(folder, "code").write_text(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))
