"""The TorchX component ``cubicml.torchtitan.train``: torchtitan, recorded and rewritten."""

# TorchX 0.7 evaluates annotations and knows no newer forms; every function in this module counts as a component.
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Dict, List, Optional

from torchx.specs import AppDef

if find_spec("torchx_cubicml") is None:  # from a bare checkout, as in components/cubicml.py
    typed = [word[: -len(":train")] for word in sys.argv if word.endswith("torchtitan.py:train")]
    for name in (__file__, *typed):
        checkout = Path(name).resolve().parent.parent.parent
        if (checkout / "torchx_cubicml" / "cubicrun.py").is_file():
            sys.path.append(str(checkout))


def train(
    *args: str,
    j: Optional[str] = None,
    h: Optional[str] = None,
    name: Optional[str] = None,
    image: Optional[str] = None,
    env: Optional[Dict[str, str]] = None,
    mounts: Optional[List[str]] = None,
    max_retries: Optional[int] = None,
    m: str = "torchtitan.train",
    space: Optional[str] = None,
    store: Optional[str] = None,
    mode: Optional[str] = None,
) -> AppDef:
    """Runs torchtitan, records its throughput, and starts the next one with a better config.

    Put torchtitan's own arguments after `--`:

        torchx run cubicml.torchtitan.train -j 1x8 --space titan.toml -- --module llama3 --config llama3_8b

    A space file declares what may change; `trainer = "torchtitan"` in it binds torchtitan's flags.

    Args:
        args: torchtitan's own arguments
        j: nodes x processes per node, as 2x8
        h: type of host, a named resource
        name: name of the job
        image: container image, on container schedulers
        env: environment variables, as A=b,C=d
        mounts: mounts on container schedulers, as type=bind,src=/shared,dst=/shared
        max_retries: retries by the scheduler
        m: module to run, if another trainer built on torchtitan
        space: search space file (TOML): what may change
        store: fsspec URL of the trial store (default: ~/.torchx-cubicml)
        mode: rewrite, record (change nothing) or off (default: rewrite with a space, else record)
    """
    from torchx_cubicml.rewrite import trainer_component

    job = {"j": j, "h": h, "name": name, "image": image, "env": env, "mounts": mounts, "max_retries": max_retries}
    ours = {"space": space, "store": store, "mode": mode}
    return trainer_component.trainer_app(["-m", m], args, job=job, ours=ours)
