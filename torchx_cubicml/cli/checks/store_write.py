"""Check of the store: reachable and writable from here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.cli.checks.finding import Finding, ok, skipped, warning, wrong

if TYPE_CHECKING:
    from torchx_cubicml.cli.checks.context import CheckContext
    from torchx_cubicml.store.probe import StoreProbe

NAME, PLACE = "store: write", 70
_CURES = {
    "no space left": "free space on that file system, or name another store (--store URL)",
    "disk quota": "free space within your quota, or name another store (--store URL)",
    "not a folder": "a store is a folder: name another place (--store URL), or move the file away",
    "permission": "let your user write there, or name another store (--store URL)",
    "access": "let your credentials write there, or name another store (--store URL)",
    "read-only": "name a store on a file system that can be written (--store URL)",
    "of the kernel": "name a folder on a disk (--store URL)",
    " needs ": "install that client here and in the job's image",
    "longer than": "check the network and the server; a folder: check that its file system answers",
}
_OTHER = "check the place, the network and the credentials, or name another store (--store URL)"


def check(context: CheckContext) -> Finding:
    """Check it with a small object that is written, read back and removed; ``--no-probe`` writes none."""
    if context.address_problem:
        return skipped("its URL cannot be used")
    probe = context.probe
    if probe.obstacle:
        return wrong(probe.obstacle, write_cure(probe.obstacle))
    if probe.presence == "absent" and not probe.is_written:
        return ok(f"{context.url} does not exist yet; the first launch can make it")
    if probe.presence == "other":
        found = f"{context.url} holds other files and no store{_written(probe)}"
        return warning(found, "check --store for a typing error; else the first launch makes a store among them")
    return ok(f"{context.url}{_written(probe)}")


def write_cure(obstacle: str) -> str:
    """Return the cure of an obstacle to writing."""
    lower = obstacle.lower()
    return next((cure for part, cure in _CURES.items() if part in lower), _OTHER)


def _written(probe: StoreProbe) -> str:
    if probe.is_written:
        return ": a probe was written, read back and removed"
    return ": nothing known prevents writing (no probe was written)"
