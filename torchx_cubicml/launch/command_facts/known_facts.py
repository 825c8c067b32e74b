"""Record of the facts that a command tells, each with where it was read."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchx_cubicml.launch.command_facts.stated_settings import Setting
    from torchx_cubicml.records.values import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandFacts:
    """Facts of a training as far as its command tells them.

    Args:
        facts: value by standard name.
        sources: fact -> where it was read, for people: a flag, a key of a file, a place in the source, a launch.
        assumed: facts that the source suggests, and that something unseen may change.
        unknown: facts that count and that nothing tells.
        unread: script whose source cannot be read here, or word of a file of arguments; empty where all were read.
    """

    facts: Mapping[str, Value] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    assumed: frozenset[str] = frozenset()
    unknown: tuple[str, ...] = ()
    unread: str = ""

    @classmethod
    def of(cls, settings: Mapping[str, Setting]) -> Self:
        """Return the facts among settings by fact."""
        return cls(
            facts={fact: setting.value for fact, setting in settings.items()},
            sources={fact: setting.source for fact, setting in settings.items()},
            assumed=frozenset(fact for fact, setting in settings.items() if setting.is_assumed),
        )

    def completed_by(self, other: Mapping[str, Setting]) -> Self:
        """Return these facts and those of ``other`` that these lack."""
        more = {fact: setting for fact, setting in other.items() if fact not in self.facts}
        return replace(
            self,
            facts={**self.facts, **{fact: setting.value for fact, setting in more.items()}},
            sources={**self.sources, **{fact: setting.source for fact, setting in more.items()}},
            assumed=self.assumed | {fact for fact, setting in more.items() if setting.is_assumed},
            unknown=tuple(fact for fact in self.unknown if fact not in more),
        )
