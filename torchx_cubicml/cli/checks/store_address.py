"""Check of the store's URL: legal, with its client installed, and visible to jobs of the scheduler."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from torchx_cubicml.cli.checks.finding import Finding, ok, warning, wrong
from torchx_cubicml.errors import StoreError

if TYPE_CHECKING:
    from torchx_cubicml.cli.checks.context import CheckContext

NAME, PLACE = "store: URL", 60


def check(context: CheckContext) -> Finding:
    """Check the URL without asking its server."""
    from torchx_cubicml.launch.scheduler import is_contained
    from torchx_cubicml.store.obstacle import write_obstacle
    from torchx_cubicml.store.url import LOCAL_PROTOCOLS, split_url

    try:
        url = context.url
    except StoreError as error:
        return wrong(str(error), "correct --store, `store` of .torchxconfig or TORCHX_CUBICML_STORE")
    protocol, _ = split_url(url)
    if protocol not in LOCAL_PROTOCOLS:
        obstacle = write_obstacle(url)
        if obstacle:
            return wrong(obstacle, f"install the client here and in the job's image: {sys.executable} -m pip install")
    elif is_contained(context.scheduler):
        found = f"{url} may not be visible to jobs on {context.scheduler}, or end with their container"
        return warning(found, "use an object store (--store s3://...), or mount the folder; --job tells for sure")
    return ok(url)
