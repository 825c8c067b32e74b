"""The TorchX component ``cubicml.megatron_lm.pretrain_gpt``: Megatron-LM, recorded and rewritten."""

# TorchX 0.7 evaluates annotations and knows no newer forms; every function in this module counts as a component.
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Dict, List, Optional

from torchx.specs import AppDef

if find_spec("torchx_cubicml") is None:  # from a bare checkout, as in components/cubicml.py
    typed = [word[: -len(":pretrain_gpt")] for word in sys.argv if word.endswith("megatron_lm.py:pretrain_gpt")]
    for name in (__file__, *typed):
        checkout = Path(name).resolve().parent.parent.parent
        if (checkout / "torchx_cubicml" / "cubicrun.py").is_file():
            sys.path.append(str(checkout))


def pretrain_gpt(
    *args: str,
    j: Optional[str] = None,
    h: Optional[str] = None,
    name: Optional[str] = None,
    image: Optional[str] = None,
    env: Optional[Dict[str, str]] = None,
    mounts: Optional[List[str]] = None,
    max_retries: Optional[int] = None,
    script: str = "pretrain_gpt.py",
    space: Optional[str] = None,
    store: Optional[str] = None,
    mode: Optional[str] = None,
) -> AppDef:
    """Runs Megatron-LM, records its throughput, and starts the next one with a better config.

    Put Megatron-LM's own arguments after `--`. CUDA_DEVICE_MAX_CONNECTIONS is 1, as Megatron-LM requires, unless
    `--env` sets it:

        torchx run cubicml.megatron_lm.pretrain_gpt -j 2x8 --space gpt.toml -- --num-layers 24 --hidden-size 2048 ...

    A space file declares what may change; `trainer = "megatron-lm"` in it binds Megatron-LM's flags.

    Args:
        args: Megatron-LM's own arguments
        j: nodes x processes per node, as 2x8
        h: type of host, a named resource
        name: name of the job
        image: container image, on container schedulers
        env: environment variables, as A=b,C=d
        mounts: mounts on container schedulers, as type=bind,src=/shared,dst=/shared
        max_retries: retries by the scheduler
        script: script in the folder of Megatron-LM, as pretrain_mamba.py
        space: search space file (TOML): what may change
        store: fsspec URL of the trial store (default: ~/.torchx-cubicml)
        mode: rewrite, record (change nothing) or off (default: rewrite with a space, else record)
    """
    from torchx_cubicml.rewrite import trainer_component

    variables = {"CUDA_DEVICE_MAX_CONNECTIONS": "1", **(env or {})}
    job = {"j": j, "h": h, "name": name, "image": image, "env": variables, "mounts": mounts, "max_retries": max_retries}
    ours = {"space": space, "store": store, "mode": mode}
    return trainer_component.trainer_app(["--script", script], args, job=job, ours=ours)
