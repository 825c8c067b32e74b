"""Check of hooks before a launch: whether the program has what they change, as far as it is known.

Earlier launches that set a hook or checked it decide (``hook_refusals``). Where none did, the program's source may show
that a hook cannot serve. The model of an earlier launch raises doubts alone: since then, the program may have changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from torchx_cubicml.facts.hook_registry import hook_spec
from torchx_cubicml.history.hook_refusals import HookRefusals, has_told, hook_name, model_doubt
from torchx_cubicml.launch.program_source import ProgramSource

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torchx_cubicml.launch import Launch
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Config
    from torchx_cubicml.space import SearchSpace

_NAMED = 3  # files that a message names


@dataclass(frozen=True, slots=True, kw_only=True)
class HookCheck:
    """Hooks of a space of which no launch has told yet.

    Args:
        open: parameter -> its hook, where the next launch tells whether it serves.
        doubts: why some of these may not, in words.
        unserved: parameter -> why its hook cannot serve the program, which is certain.
    """

    open: Mapping[str, str]
    doubts: tuple[str, ...]
    unserved: Mapping[str, str]

    @classmethod
    def of(
        cls, launch: Launch, space: SearchSpace, current: Config, *, recorded: Iterable[Trial], own: Iterable[Trial]
    ) -> Self:
        """Check the hooks of a space; nothing is run.

        Args:
            launch: the command as typed.
            space: search space.
            current: the user's own config.
            recorded: trials as recorded, whose config has only what their launch knew.
            own: trials of the same workload and work, in the terms of the space.
        """
        hooked = [item for item in space.parameters if item.derive is None and hook_name(item)]
        ids = {trial.trial_id for trial in own} if hooked else set[str]()
        launches = [trial for trial in recorded if trial.trial_id in ids]
        asked = [item for item in hooked if not has_told(item, current, launches)]
        source = ProgramSource.of(launch) if asked else ProgramSource(files=(), text="")
        uncalled = uncalled_hooks(source, {item.name: hook_name(item) for item in asked})
        unserved = {} if source.doubt else uncalled
        left = [item for item in asked if item.name not in unserved]
        hooks = {item.name: hook_name(item) for item in left}
        doubts = [f"{reason}, but {source.doubt}" for reason in uncalled.values() if source.doubt]
        doubts += rival_doubts(source, hooks)
        doubts += filter(None, (model_doubt(item, current, launches) for item in left))
        return cls(open=hooks, doubts=tuple(dict.fromkeys(doubts)), unserved=unserved)

    def texts(self) -> list[str]:
        """Return the parameters that keep their own values, with the reasons, as ``HookRefusals`` does."""
        return HookRefusals(parameters=self.unserved).texts()

    def open_text(self) -> str:
        """Return the hooks that the next launch tells of, with the doubts; empty without one."""
        if not self.open:
            return ""
        named: dict[str, list[str]] = {}
        for parameter, hook in self.open.items():
            named.setdefault(hook, []).append(parameter)
        listed = ", ".join(f"{hook} ({' and '.join(parameters)})" for hook, parameters in named.items())
        return "; ".join([f"the first launch tells whether these hooks serve the program: {listed}", *self.doubts])

    def refusal(self, where: str) -> str:
        """Return the sentence that ends a tune before its first launch; empty where no hook is known not to serve.

        Args:
            where: path of the space file.
        """
        if not self.unserved:
            return ""
        names: dict[str, list[str]] = {}
        for parameter, reason in self.unserved.items():
            names.setdefault(reason, []).append(parameter)
        reasons = [f"a hook cannot set {' and '.join(each)}: {reason}" for reason, each in names.items()]
        return (
            f"{'; '.join(reasons)}. Nothing was launched: remove {' and '.join(self.unserved)} from {where}, or make "
            "the call. If other code makes it, launch the command once with this space file: then the job tells"
        )


def uncalled_hooks(source: ProgramSource, hooks: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters whose hooks change calls that a source does not name anywhere, with the reason in words.

    Other code may make the calls where the source has a ``doubt``.

    Args:
        source: of the program.
        hooks: parameter -> hook that sets it.
    """
    more = f" and {len(source.files) - _NAMED} more" if len(source.files) > _NAMED else ""
    read = f"(read: {', '.join(source.files[:_NAMED])}{more})"
    reasons = {}
    for parameter, spec in ((parameter, hook_spec(hook)) for parameter, hook in hooks.items()):
        if source.text and spec.calls and not source.has(spec.marks):
            calls = f"neither {' nor '.join(spec.calls)}" if len(spec.calls) > 1 else f"no {spec.calls[0]}"
            reasons[parameter] = f"the program calls {calls} {read}"
    return reasons


def rival_doubts(source: ProgramSource, hooks: Mapping[str, str]) -> list[str]:
    """Return the names in a source that speak against its hooks, in words.

    Args:
        source: of the program.
        hooks: parameter -> hook that sets it.
    """
    return [
        f"the program names {name}: for {hook}, {why}"
        for hook in dict.fromkeys(hooks.values())
        for name, why in hook_spec(hook).rivals.items()
        if source.has([name])
    ]
