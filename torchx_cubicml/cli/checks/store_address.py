"""Check of the store's URL: legal, with its client installed, and visible to jobs of the scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.cli.checks.finding import Finding, ok, warning, wrong
from torchx_cubicml.store.url import LOCAL_PROTOCOLS, split_url

if TYPE_CHECKING:
    from torchx_cubicml.cli.checks.context import CheckContext

NAME, PLACE = "store: URL", 60


def check(context: CheckContext) -> Finding:
    """Check the URL without asking its server."""
    from torchx_cubicml.launch.scheduler import folder_doubt

    problem = context.address_problem
    if " needs " in problem:
        return wrong(problem, "install it here and in the job's image")
    if problem:
        return wrong(problem, "correct --store, `store` of .torchxconfig or TORCHX_CUBICML_STORE")
    doubt = folder_doubt(context.scheduler) if split_url(context.url)[0] in LOCAL_PROTOCOLS else ""
    if doubt and _is_meant(context):
        cure = "use an object store (--store s3://...), or mount the folder; --job tells for sure"
        return warning(f"{context.url} {doubt}", cure)
    return ok(context.url)


def _is_meant(context: CheckContext) -> bool:
    """Return whether jobs are meant for the scheduler: TorchX's default is a guess where no launch is named."""
    return bool(context.args.scheduler or context.args.command or context.args.job)
