"""Tables of the keys of a space file, from the keys that its reader accepts."""

from __future__ import annotations

from markdown_table import code, table

from torchx_cubicml.space.toml.key_meanings import TABLES

LINKS = {
    "project": "launching.md#what-an-ordinary-launch-may-change",
    "objective": "#objectives",
    "statistic": "#statistics",
    "prices": "#objectives",
    "job": "#soonest-done",
    "workload": "#workload-facts",
    "parameters": "#parameters",
    "constraints": "#expressions",
    "ignore_rules": "#rules-of-legality",
    "tune": "#profiling-launches-tune",
    "rewrite": "#ordinary-launches-rewrite",
    "trainer": "#trainers",
    "log": "#log-lines-log",
}
"""Key of the top level -> its section in the reference of the space file."""


def key_table(name: str) -> str:
    """Return the keys of one table of a space file, each with its meaning and default.

    Args:
        name: one of ``TABLES``.
    """
    links = LINKS if name == "top level" else {}
    rows = [
        [f"[{code(key)}]({links[key]})" if key in links else code(key), text.meaning, text.default]
        for key, text in TABLES[name].items()
    ]
    return table(["key", "meaning", "default"], rows)
