"""A component of one plain Python command, without torchrun: its jobs start in a tenth of a second."""

import sys

import torchx.specs as specs


def quick(*args: str, script: str, memMB: int = 200, replicas: int = 1, max_retries: int = 0) -> specs.AppDef:  # noqa: N803
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
