"""A component of one plain Python command, without torchrun: its jobs start in a tenth of a second."""

import sys

import torchx.specs as specs


def quick(
    *args: str,
    script: str,
    memMB: int = 1000,  # noqa: N803 - as in dist.ddp
    replicas: int = 1,
    max_retries: int = 0,
) -> specs.AppDef:
    """Run a script.

    Args:
        args: its arguments
        script: path of it
        memMB: memory of each replica
        replicas: how many
        max_retries: after a failure
    """
    role = specs.Role(
        name="quick",
        image="",
        entrypoint=sys.executable,
        args=[script, *args],
        num_replicas=replicas,
        max_retries=max_retries,
        resource=specs.Resource(cpu=1, gpu=0, memMB=memMB),
    )
    return specs.AppDef(name="quick", roles=[role])


def two_nodes(*args: str, script: str, memMB: int = 4000) -> specs.AppDef:  # noqa: N803 - likewise
    """Run a script by torchrun on two nodes that are one machine, so that each job needs a port of its own.

    Args:
        args: its arguments
        script: path of it
        memMB: memory of each node
    """
    torchrun = ["--nnodes", "2", "--nproc_per_node", "1", "--rdzv_backend", "c10d", "--tee", "3"]
    rendezvous = ["--rdzv_id", specs.macros.app_id, "--rdzv_endpoint", f"localhost:290{specs.macros.app_id}"]
    role = specs.Role(
        name="train",
        image="",
        entrypoint="torchrun",
        args=[*torchrun, *rendezvous, script, *args],
        num_replicas=2,
        env={"OMP_NUM_THREADS": "1"},
        resource=specs.Resource(cpu=1, gpu=0, memMB=memMB),
    )
    return specs.AppDef(name="train", roles=[role])
