"""Placement of a config in a launch, with the contract that passes it to the job.

The tuner and ``suggest`` write a config that they chose; ``rewriter`` writes one with a predicted gain.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.history.present_command import program_digest
from torchx_cubicml.launch.bindings.config_file import patches_of
from torchx_cubicml.launch.command_texts import launcher_provenance, program_path, program_texts, recorded_variables
from torchx_cubicml.launch.config_io import (
    change_for_profiling,
    checked_hooks,
    kept_variables,
    read_config,
    write_config,
)
from torchx_cubicml.launch.launch import has_same_nodes
from torchx_cubicml.launch.messages import message_line
from torchx_cubicml.launch.scheduler import program_environment
from torchx_cubicml.records.contract import Contract, TypedCommand

if TYPE_CHECKING:
    from torchx_cubicml.launch.launch import Launch
    from torchx_cubicml.records.suggestion import Suggestion
    from torchx_cubicml.records.trial import Origin
    from torchx_cubicml.records.values import Config
    from torchx_cubicml.space import SearchSpace


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrittenLaunch:
    """A launch as it will run, with its contract and messages.

    Args:
        launch: the command.
        contract: contract with the job; ``None`` if the launch is not recorded.
        suggestion: suggestion behind the config; ``None`` if the launch runs as typed.
        second_attempt: contract of the launch as typed, which runs if the rewritten one fails early; ``None`` if it
            does not.
        lines: message lines for stderr.
    """

    launch: Launch
    contract: Contract | None = None
    suggestion: Suggestion | None = None
    second_attempt: Contract | None = None
    lines: tuple[str, ...] = ()

    def with_lines(self, *texts: str) -> Self:
        """Return a copy with more message lines."""
        return replace(self, lines=(*self.lines, *map(message_line, texts)))


def place_config(  # noqa: PLR0913 - each keyword is one property of a profiling launch
    launch: Launch,
    space: SearchSpace,
    config: Config,
    *,
    store: str,
    origin: Origin,
    launch_id: str = "",
    suggestion: Suggestion | None = None,
    step_limit: int | None = None,
    scratch: str = "",
    keeps_command: bool = False,
) -> RewrittenLaunch:
    """Return the launch with ``config`` in it, and its contract.

    Args:
        launch: the user's command.
        space: contains the binding of each value.
        config: legal config of the space.
        store: URL of the store.
        origin: source of the config.
        launch_id: joins the trial with its ``planned`` event.
        suggestion: suggestion behind the config.
        step_limit: optimizer steps after which the launch ends.
        scratch: folder for the output of a profiling launch; if given, the changes of ``[tune]`` are made too.
        keeps_command: whether the record keeps the command.

    Raises:
        LaunchError: the command may not be changed, or a value cannot be written into it.
        StoreError: a job cannot reach the store.
    """
    from torchx_cubicml.store import absolute_url

    if launch.why_not_rewritten:
        raise LaunchError(f"the arguments of this command cannot be changed: {launch.why_not_rewritten}")
    workload, current = read_config(launch, space)
    placed = write_config(launch, space, config)
    if scratch:
        placed = change_for_profiling(placed, space, {"scratch": scratch, "launch_id": launch_id})
    program = program_path(launch.program, is_module=launch.is_module)
    contract = Contract(
        store=absolute_url(store, for_launch=True),
        workload=workload,
        config=config,
        objective=space.objective,
        origin=origin,
        launch_id=launch_id,
        scheduler=launch.scheduler,
        suggestion=None if suggestion is None else suggestion.promise(),
        step_limit=step_limit,
        log=space.log,
        hooks=placed.hooks,
        checked_hooks=checked_hooks(placed, space, config),
        variables=recorded_variables(program, program_environment(launch)),
        program=program_digest(program_texts(program)),
        provenance=launcher_provenance(program, space.digest),
    )
    contract = replace(contract, kept_variables=kept_variables(contract, space)) if keeps_command else contract
    contract = with_files(contract, typed=launch, wanted=placed, own=current)
    return RewrittenLaunch(launch=placed, contract=contract, suggestion=suggestion)


def second_attempt(contract: Contract, *, typed: Launch, wanted: Launch) -> Contract | None:
    """Return the contract of a launch that runs as typed after its rewritten command has failed.

    It is ``None`` if the command cannot be started again in the same job, or would find other nodes there.

    Args:
        contract: contract of the launch as typed.
        typed: the user's command.
        wanted: the rewritten command.
    """
    if not typed.can_have_second_attempt or not has_same_nodes(wanted, typed):
        return None
    command = TypedCommand(env=_typed_variables(typed, wanted))
    return replace(contract, as_typed=command, is_second_attempt=True)


def with_files(contract: Contract, *, typed: Launch, wanted: Launch, own: Config) -> Contract:
    """Return the contract with the job's patches of config files, and the typed command as fallback."""
    patches = patches_of(wanted)
    if not patches:
        return contract
    return with_typed_command(replace(contract, files=patches), typed=typed, wanted=wanted, own=own)


def with_typed_command(contract: Contract, *, typed: Launch, wanted: Launch, own: Config) -> Contract:
    """Return the contract with the typed command as fallback in the job."""
    sizes = {name: getattr(wanted, name) for name in ("nnodes", "nproc_per_node", "world_size") if name in own}
    fallback = TypedCommand(args=typed.script_args, env=_typed_variables(typed, wanted), config={**own, **sizes})
    return replace(contract, as_typed=fallback)


def _typed_variables(typed: Launch, wanted: Launch) -> dict[str, str | None]:
    """Return the changed variables with their values as typed; ``None`` where a variable was unset."""
    changed = sorted(name for name in {*typed.env, *wanted.env} if typed.env.get(name) != wanted.env.get(name))
    return {name: typed.env.get(name) for name in changed}
