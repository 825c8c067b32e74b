"""Command of this job as a user would type it again, for records that keep it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.recorder.process.assignment import Assignment
    from torchx_cubicml.records.contract import FilePatch
    from torchx_cubicml.settings import JobEnvironment


def repeatable_command(assignment: Assignment) -> dict[str, object] | None:
    """Return words, names of variables, hooks and values of config files as JSON values; ``None`` if not kept.

    The words begin with torchrun where that started the job. Its rendezvous is the cluster's own and left out.
    """
    contract, program = assignment.contract, assignment.program
    if contract.kept_variables is None or program is None:
        return None
    name = ["-m", program.name] if program.is_module else [program.name]
    return {
        "words": [*_launcher(assignment.job), *name, *_as_named(program.arguments, contract.files)],
        "variables": list(contract.kept_variables),
        "hooks": dict(contract.hooks),
        "files": {
            f"{patch.path or patch.variable} {'.'.join(key)}": value
            for patch in contract.files
            for key, value in patch.values
        },
    }


def _launcher(job: JobEnvironment) -> list[str]:
    if not job.run_id:
        return ["python"]
    nodes = ["--standalone"] if job.nnodes == 1 else ["--nnodes", str(job.nnodes)]
    return ["torchrun", *nodes, "--nproc_per_node", str(max(job.world_size // job.nnodes, 1))]


def _as_named(arguments: Sequence[str], files: Sequence[FilePatch]) -> list[str]:
    """Return the arguments with the paths of the user's config files in place of their temporary copies."""
    words = list(arguments)
    for patch in files:
        if patch.argument is not None and patch.argument < len(words):
            name, joined, _ = words[patch.argument].partition("=")
            words[patch.argument] = f"{name}={patch.path}" if joined else patch.path
    return words
