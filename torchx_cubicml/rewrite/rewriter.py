"""Rewriter of one launch: a command in, the rewritten command and its contract out. Every launcher uses it.

A failure of this package never stops or changes a training: it is reported in one line, and the launch runs as the user
typed it, recorded if possible.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Self, TypeVar

from torchx_cubicml.errors import CubicMLError, LaunchError
from torchx_cubicml.launch import ComponentLaunch, materialize, read_config, workload_of, write_config
from torchx_cubicml.launch.messages import aligned, change_rows, gain_text, interval_text, statistic_text, told
from torchx_cubicml.launch.place_config import RewrittenLaunch, with_files
from torchx_cubicml.launch.scheduler import is_contained, scheduler_of_process
from torchx_cubicml.records.contract import Contract, encode_contract
from torchx_cubicml.records.trial import Origin
from torchx_cubicml.rewrite.choice import DecisionContext
from torchx_cubicml.rewrite.rules import check_batch_size, not_permitted
from torchx_cubicml.settings import cache_folder, default_store_url, option, seconds_option

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torchx.specs import AppDef

    from torchx_cubicml.launch import Launch, MaterializedComponent
    from torchx_cubicml.records.trial import Config
    from torchx_cubicml.rewrite.choice import Choice
    from torchx_cubicml.space import SearchSpace

MODES = ("rewrite", "record", "off")
READ_DEADLINE_S = 5.0
THINK_DEADLINE_S = 10.0

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of one launch; an empty text stands for the value from the settings.

    Args:
        space: path of the space file.
        store: URL of the store.
        mode: ``rewrite``, ``record`` or ``off``; by default ``rewrite`` with a space and ``record`` without one.
        flags: prefix of option names on the command line, for messages.
    """

    space: str = ""
    store: str = ""
    mode: str = ""
    flags: str = "--"

    @classmethod
    def resolved(cls, *, space: str = "", store: str = "", mode: str = "", flags: str = "--") -> Self:
        """Fill empty options from ``.torchxconfig``, then from the environment."""
        from torchx.runner.config import load_sections

        section = load_sections("component").get("cubicml", {})
        given = {"space": space, "store": store, "mode": mode}
        settled = {name: value or section.get(name) or option(name) or "" for name, value in given.items()}
        return cls(**settled, flags=flags)


def rewrite(launch: Launch, options: Options) -> RewrittenLaunch:
    """Record a launch, and rewrite its arguments if that has a predicted gain.

    Never raises: a failure is reported in the launch's lines, and the launch stays as typed.
    """
    mode = options.mode or ("rewrite" if options.space else "record")
    plain = RewrittenLaunch(launch=launch)
    if mode == "off":
        return plain
    return _with_fallback(
        lambda: _with_contract(plain, options, mode),
        lambda why: plain.telling(f"launched as typed and not recorded: {why}"),
    )


def rewrite_component(args: Sequence[str], options: Options) -> AppDef:
    """Build the TorchX app of a component and its arguments, recorded and rewritten, and report the changes on stderr.

    Raises:
        LaunchError: there is no component, or TorchX refuses it or its arguments.
        SystemExit: TorchX's parser refuses an argument, and has printed so on stderr.
    """
    if not args:
        raise LaunchError("a component to run is wanted, as in: cubicml dist.ddp -j 1x2 --script train.py -- ARGS")
    source = materialize(args[0], args[1:])
    if options.mode == "off":
        return source.app
    as_typed = "launched as typed and not recorded: {}".format
    app, lines = _with_fallback(lambda: _app(source, options), lambda why: (source.app, (told(as_typed(why)),)))
    sys.stderr.write("".join(f"{line}\n" for line in lines))
    return app


def _with_fallback(step: Callable[[], _T], fallback: Callable[[str], _T]) -> _T:
    """Return the result of ``step`` or, if it fails, that of ``fallback`` for the reason."""
    try:
        return step()
    except CubicMLError as error:
        return fallback(str(error))
    except Exception as error:  # noqa: BLE001 - a defect of ours or of a library must not stop the user's training
        return fallback(f"{type(error).__name__}: {error}")


def _app(source: MaterializedComponent, options: Options) -> tuple[AppDef, tuple[str, ...]]:
    component = ComponentLaunch.of(source)
    if component.why_not_recorded:
        raise LaunchError(component.why_not_recorded)
    scheduler = _with_fallback(scheduler_of_process, lambda _: "")
    rewritten = rewrite(replace(component.launch, scheduler=scheduler), options)
    return component.build(rewritten.launch, rewritten.contract), rewritten.lines


def _with_contract(plain: RewrittenLaunch, options: Options, mode: str) -> RewrittenLaunch:
    from torchx_cubicml.store import absolute_url

    launch = plain.launch
    store = absolute_url(options.store or default_store_url(), for_launch=True)
    contract = Contract(store=store, workload=workload_of(launch), scheduler=launch.scheduler)
    recorded = replace(plain, contract=contract).telling(
        f"this launch will be recorded in {store}", *_reach_warnings(store, launch, options)
    )
    if mode not in MODES:
        recorded = recorded.telling(f"arguments stay as typed: unknown mode {mode!r}; legal are {', '.join(MODES)}")
    if not options.space:
        no_space = f"arguments stay as typed: no space file says what may be changed ({options.flags}space FILE)"
        return recorded.telling(no_space) if mode == "rewrite" else recorded
    return _with_fallback(
        lambda: _checked_size(_with_config(recorded, options, mode)),
        lambda why: recorded.telling(f"arguments stay as typed: {why}"),
    )


def _checked_size(rewritten: RewrittenLaunch) -> RewrittenLaunch:
    """Return the launch unchanged after a check that its contract can be encoded.

    Raises:
        ContractError: the contract is too large to be passed to the job.
    """
    if rewritten.contract is not None:
        encode_contract(rewritten.contract)
    return rewritten


def _reach_warnings(store: str, launch: Launch, options: Options) -> tuple[str, ...]:
    from torchx_cubicml.store.url import LOCAL_PROTOCOLS, split_url

    protocol, path = split_url(store)
    if not is_contained(launch.scheduler) or protocol not in LOCAL_PROTOCOLS:
        return ()
    if any(PurePosixPath(path).is_relative_to(folder) for folder in launch.mounted):
        return ()
    text = f"on {launch.scheduler} {store} is inside the container and ends with it, unless a volume is mounted there"
    return (f"{text}; name a store that both sides reach ({options.flags}store URL)",)


def _with_config(recorded: RewrittenLaunch, options: Options, mode: str) -> RewrittenLaunch:
    from torchx_cubicml.space.toml import load_space

    space, launch, contract = load_space(options.space), recorded.launch, recorded.contract
    workload, config = read_config(launch, space)
    if contract is None:
        return recorded
    contract = replace(contract, workload=workload, config=config, objective=space.objective, log=space.log)
    read = replace(recorded, contract=contract)
    if mode != "rewrite":
        return read
    return _with_fallback(
        lambda: _rewritten(read, contract, space, options), lambda why: read.telling(f"arguments stay as typed: {why}")
    )


def _rewritten(read: RewrittenLaunch, contract: Contract, space: SearchSpace, options: Options) -> RewrittenLaunch:
    launch, workload, current = read.launch, contract.workload, contract.config
    if launch.why_not_rewritten:
        raise LaunchError(launch.why_not_rewritten)
    check_batch_size(workload=workload, current=current)
    read = read.telling(*map(_not_permitted_line, not_permitted(space)))
    from torchx_cubicml.rewrite.decide import DecisionLimits, decide

    limits = DecisionLimits(
        read_s=READ_DEADLINE_S, think_s=seconds_option("think_deadline_s", THINK_DEADLINE_S), cache=cache_folder()
    )
    case = DecisionContext(space=space, workload=workload, current=current)
    decision = decide(case, contract.store, limits=limits, now=datetime.now(UTC))
    read, choice = read.telling(*decision.lines), decision.choice
    if choice is None:
        return read.telling("arguments stay as typed: no launch of this workload was measured yet")
    suggestion = choice.suggestion
    if choice.rejection_reason:
        return read.telling(
            f"arguments stay as typed: {choice.rejection_reason} ({_launches(suggestion.n_trials)} known)"
        )
    written = write_config(launch, space, choice.config)
    contract = replace(
        contract,
        config=choice.config,
        origin=choice.origin,
        suggestion=suggestion.promise(),
        hooks=written.hooks,
    )
    contract = with_files(contract, typed=launch, wanted=written, own=current)
    if contract.files and written.world_size != launch.world_size:
        raise LaunchError("the best config known changes config files and the size of the job, which no job can undo")
    changed = replace(read, launch=written, contract=contract, suggestion=suggestion)
    return _with_block(changed, space, current, choice, options)


def _with_block(
    changed: RewrittenLaunch, space: SearchSpace, current: Config, choice: Choice, options: Options
) -> RewrittenLaunch:
    suggestion, rows = choice.suggestion, change_rows(space, current, choice.config)
    gain = {name: getattr(suggestion, name) for name in ("gain", "gain_low", "gain_high")}
    doubt = interval_text(suggestion.doubt)
    rows = [
        *rows,
        (
            f"predicted gain {statistic_text(space.statistic)}".rstrip(),
            gain_text(gain) if suggestion.throughput is not None else "unknown, which is why it is tried",
        ),
        *([("measured", f"{doubt} at the surest launch of each config")] if doubt else []),
        ("to switch this off", f"{options.flags}mode record"),
    ]
    known = _launches(suggestion.n_trials)
    why = (
        f"from what {known} of this workload showed" if choice.origin is Origin.REWRITE else f"to learn: {known} known"
    )
    with_heading = changed.telling(f"arguments rewritten, {why}")
    return replace(with_heading, lines=(*with_heading.lines, *aligned(rows)))


def _not_permitted_line(name: str) -> str:
    return f"{name} stays as typed: it changes what is trained (changes_training = true in the space file permits it)"


def _launches(count: int) -> str:
    return f"{count} launch" if count == 1 else f"{count} launches"
