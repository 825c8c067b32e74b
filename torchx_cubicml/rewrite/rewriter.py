"""Rewriter of one launch: a command in, the rewritten command and its contract out. Every launcher uses it.

A failure of this package never stops or changes a training: it is reported in one line, and the launch runs as the user
typed it, recorded if possible.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Self

from torchx_cubicml.errors import CubicMLError, LaunchError
from torchx_cubicml.history.history import History
from torchx_cubicml.history.present_command import program_digest
from torchx_cubicml.history.same_training import check_batch_size, kept_line, not_permitted
from torchx_cubicml.launch import ComponentLaunch, materialize, read_config, with_rule_facts, workload_of, write_config
from torchx_cubicml.launch.command_texts import launcher_provenance, program_path, program_texts, recorded_variables
from torchx_cubicml.launch.config_io import checked_hooks, kept_variables, present_command
from torchx_cubicml.launch.going_on import ResumeSigns
from torchx_cubicml.launch.messages import (
    KEPT,
    NOT_RECORDED,
    aligned,
    change_rows,
    gain_text,
    interval_text,
    message_line,
    per_cost_text,
    statistic_text,
)
from torchx_cubicml.launch.place_config import RewrittenLaunch, second_attempt, with_files, with_typed_command
from torchx_cubicml.launch.scheduler import (
    check_takes_command,
    is_dry_run,
    is_on_this_machine,
    program_environment,
    scheduler_of_process,
    scheduler_options_of_process,
    store_doubt,
)
from torchx_cubicml.launch.torchx_config import own_section
from torchx_cubicml.records.contract import Contract, TypedCommand, encode_contract
from torchx_cubicml.records.job_time import parts_text, seconds_text
from torchx_cubicml.records.provenance import SPACE
from torchx_cubicml.records.trial import Origin
from torchx_cubicml.rewrite.rules import check_outputs, held
from torchx_cubicml.settings import (
    KEEP_COMMAND,
    cache_folder,
    default_store_url,
    forget_variables_of_libraries,
    is_on,
    option,
    seconds_option,
)
from torchx_cubicml.store.obstacle import folder_obstacle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torchx.specs import AppDef

    from torchx_cubicml.advisor import Suggestion
    from torchx_cubicml.launch import Launch, MaterializedComponent
    from torchx_cubicml.records.values import Config
    from torchx_cubicml.rewrite.choice import Choice
    from torchx_cubicml.rewrite.decide import Decision
    from torchx_cubicml.space import SearchSpace

MODES = ("rewrite", "record", "off")
READ_DEADLINE_S = 5.0
_FILES_S = 10.0  # seconds for the files of each step, which are small, unless their file system hangs
_OBSTACLE_DEADLINE_S = 0.5  # a look at a local folder takes microseconds, unless its file system hangs
THINK_DEADLINE_S = 10.0
_REQUEST = (
    "the job runs this command; the request below also holds the recorder, and the command as typed for a job whose "
    "Python lacks it"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of one launch; an empty text stands for the value from the settings.

    Args:
        space: path of the space file.
        store: URL of the store.
        mode: ``rewrite``, ``record`` or ``off``; by default ``rewrite`` with a space and ``record`` without one.
        keeps_command: whether the record keeps the command.
        flags: prefix of option names on the command line, for messages.
        cache: path of the folder of caches.
    """

    space: str = ""
    store: str = ""
    mode: str = ""
    keeps_command: bool = False
    flags: str = "--"
    cache: str = ""

    @classmethod
    def resolved(
        cls, *, space: str = "", store: str = "", mode: str = "", keep_command: str = "", flags: str = "--"
    ) -> Self:
        """Fill empty options from ``.torchxconfig``, then from the environment."""
        section = own_section()
        given = {"space": space, "store": store, "mode": mode}
        settled = {name: value or section.get(name) or option(name) or "" for name, value in given.items()}
        keeps = keep_command or section.get(KEEP_COMMAND) or option(KEEP_COMMAND)
        return cls(**settled, keeps_command=is_on(keeps), flags=flags)


def rewrite(launch: Launch, options: Options, *, find_obstacle: Callable[[str], str] | None = None) -> RewrittenLaunch:
    """Record a launch, and rewrite its arguments if that has a predicted gain.

    Never raises: a failure is reported in the launch's lines, and the launch of the last step that succeeded runs.

    Args:
        launch: launch as typed.
        options: options of the user.
        find_obstacle: returns why the job cannot write to a store, empty without a reason; ``None`` where only the job
            knows.
    """
    mode = options.mode or ("rewrite" if options.space else "record")
    reached = [RewrittenLaunch(launch=launch)]
    if mode == "off":
        return reached[-1]

    # What was yielded before a failure stays in the list.
    failure = _failure_of(lambda: reached.extend(_steps(launch, options, mode, find_obstacle)))
    last = reached[-1]
    if not failure:
        return last
    return last.with_lines(f"{NOT_RECORDED if last.contract is None else KEPT}: {failure}")


def rewrite_component(args: Sequence[str], options: Options) -> AppDef:
    """Build the TorchX app of a component and its arguments, recorded and rewritten, and report the changes on stderr.

    Raises:
        LaunchError: there is no component, or TorchX refuses it or its arguments.
        SystemExit: TorchX's parser refuses an argument, and has printed so on stderr.
    """
    if not args:
        raise LaunchError("give a component to run, as in: cubicml dist.ddp -j 1x2 --script train.py -- ARGS")
    source = materialize(args[0], args[1:])
    if options.mode == "off":
        return source.app
    built: list[tuple[AppDef, tuple[str, ...]]] = []
    failure = _failure_of(lambda: built.append(_build_app(source, options)))
    app, lines = built[0] if built else (source.app, (message_line(f"{NOT_RECORDED}: {failure}"),))
    sys.stderr.write("".join(f"{line}\n" for line in lines))
    forget_variables_of_libraries()
    return app


def _failure_of(step: Callable[[], None]) -> str:
    """Run ``step`` and return why it failed; empty if it did not."""
    try:
        step()
    except CubicMLError as error:
        return str(error) or type(error).__name__
    except Exception as error:  # noqa: BLE001 - a defect of ours or of a library must not stop the user's training
        return f"{type(error).__name__}: {error}"
    return ""


def _build_app(source: MaterializedComponent, options: Options) -> tuple[AppDef, tuple[str, ...]]:
    component = ComponentLaunch.of(source)
    if component.why_not_recorded:
        raise LaunchError(component.why_not_recorded)
    schedulers, scheduler_options = [""], [dict[str, str]()]
    _failure_of(lambda: schedulers.append(scheduler_of_process()))
    _failure_of(lambda: scheduler_options.append(scheduler_options_of_process()))
    check_takes_command(schedulers[-1])
    launch = replace(component.launch, scheduler=schedulers[-1], scheduler_options=scheduler_options[-1])
    rewritten = rewrite(
        launch, options, find_obstacle=folder_obstacle if is_on_this_machine(launch.scheduler) else None
    )
    app = component.build(rewritten.launch, rewritten.contract, rewritten.second_attempt)
    if not is_dry_run():
        return app, rewritten.lines
    lines = [*rewritten.lines]
    _failure_of(lambda: lines.extend(_command_lines(component, rewritten.launch)))
    return app, tuple(lines)


def _command_lines(component: ComponentLaunch, launch: Launch) -> tuple[str, ...]:
    from torchx_cubicml.rewrite.dry_run import dry_run_command

    return dry_run_command(_REQUEST, component.readable_words(launch))


def _steps(
    launch: Launch, options: Options, mode: str, find_obstacle: Callable[[str], str] | None
) -> Iterator[RewrittenLaunch]:
    """Yield the launch after each step: recorded, recorded with its config, rewritten."""
    from torchx_cubicml.store.deadline import within

    contract = within(_FILES_S, lambda: _plain_contract(launch, options), what="reading the program's files")
    reached = RewrittenLaunch(launch=launch, contract=contract).with_lines(
        _recording_line(contract.store, find_obstacle), *_reach_warnings(contract.store, launch, options)
    )
    if mode not in MODES:
        reached = reached.with_lines(f"{KEPT}: unknown mode {mode!r}; choose from {', '.join(MODES)}")
    yield reached
    if not options.space:
        if mode == "rewrite":
            raise LaunchError(f"no space file was given ({options.flags}space FILE)")
        return
    from torchx_cubicml.space.toml import load_space

    space = within(_FILES_S, lambda: load_space(options.space), what="reading the space file")
    contract = within(_FILES_S, lambda: _contract_with_config(contract, launch, space), what="reading the config files")
    reached = replace(reached, contract=contract)
    yield reached
    if mode != "rewrite":
        with suppress(CubicMLError):  # nothing is known in time
            yield reached.with_lines(*_decide(launch, contract, space, options, mode).lines)
        return
    if launch.why_not_rewritten:
        raise LaunchError(launch.why_not_rewritten)
    check_batch_size(workload=contract.workload, current=contract.config)
    reached = reached.with_lines(*map(kept_line, not_permitted(space)))
    yield reached
    decision = _decide(launch, contract, space, options, mode)
    reached = reached.with_lines(*decision.lines)
    yield reached
    if decision.choice is None:
        raise LaunchError("no measured launch matches this workload yet")
    yield _with_choice(reached, contract, space, decision.choice, options)


def _plain_contract(launch: Launch, options: Options) -> Contract:
    """Return the contract of a launch that is recorded as typed."""
    from torchx_cubicml.store import absolute_url

    store = absolute_url(options.store or default_store_url(), for_launch=True)
    program = program_path(launch.program, is_module=launch.is_module)
    contract = Contract(
        store=store,
        workload=workload_of(launch),
        scheduler=launch.scheduler,
        variables=recorded_variables(program, program_environment(launch)),
        program=program_digest(program_texts(program)),
        provenance=launcher_provenance(program),
    )
    return replace(contract, kept_variables=kept_variables(contract)) if options.keeps_command else contract


def _contract_with_config(contract: Contract, launch: Launch, space: SearchSpace) -> Contract:
    """Return the contract with the workload and the config that the command has in ``space``.

    Raises:
        ContractError: it is too large to be passed to the job.
    """
    workload, config = read_config(launch, space)
    contract = replace(
        contract,
        workload=workload,
        config=config,
        objective=space.objective,
        log=space.log,
        checked_hooks=checked_hooks(launch, space, config),
        provenance={**contract.provenance, SPACE: space.digest},
        kept_variables=None if contract.kept_variables is None else kept_variables(contract, space),
    )
    encode_contract(contract)
    return contract


def _decide(launch: Launch, contract: Contract, space: SearchSpace, options: Options, mode: str) -> Decision:
    """Return the decision on a launch; in another mode than ``rewrite`` no more than a warning."""
    from torchx_cubicml.rewrite.decide import Decision, DecisionLimits, decide, typed_over_lines
    from torchx_cubicml.store.deadline import within

    think_s = seconds_option("think_deadline_s", THINK_DEADLINE_S)
    limits = DecisionLimits(read_s=READ_DEADLINE_S, think_s=think_s, cache=_cache_folder(options))
    starts_again = space.rewrite.retry_as_typed and (launch.can_have_second_attempt or launch.world_size == 1)
    signs = within(READ_DEADLINE_S, lambda: ResumeSigns.of(launch), what="looking for checkpoints")
    signs = replace(signs, starts_again=starts_again)
    case = History(
        space=with_rule_facts(launch, space),
        workload=contract.workload,
        current=contract.config,
        command=present_command(launch, space),
        held=held(space),
    )
    if mode != "rewrite":
        return Decision(choice=None, lines=typed_over_lines(case, signs, contract.store, limits=limits))
    return decide(case, signs, contract.store, limits=limits, now=datetime.now(UTC))


def _with_choice(
    reached: RewrittenLaunch, contract: Contract, space: SearchSpace, choice: Choice, options: Options
) -> RewrittenLaunch:
    """Return the launch with the chosen config, and the block of lines that explains it.

    Raises:
        LaunchError: the user's rules reject the choice, or it cannot be written into the command.
        ContractError: the contract is too large to be passed to the job.
    """
    launch, current, suggestion = reached.launch, contract.config, choice.suggestion
    if choice.rejection_reason:
        raise LaunchError(f"{choice.rejection_reason} ({_launches(suggestion.n_trials)} known)")
    written = write_config(launch, space, choice.config)
    # As typed, a training that goes on with the config of an earlier launch would be another one.
    has_second = space.rewrite.retry_as_typed and not choice.resumes
    second = second_attempt(contract, typed=launch, wanted=written) if has_second else None
    if second is not None:
        check_outputs(launch)
    contract = replace(
        contract,
        config=choice.config,
        origin=choice.origin,
        suggestion=suggestion.promise(),
        hooks=written.hooks,
        checked_hooks=checked_hooks(written, space, choice.config),
    )
    contract = with_files(contract, typed=launch, wanted=written, own=current)
    if second is None and has_second and not contract.files:
        is_alone = written.world_size == 1  # else the job can do no more than warn
        contract = (
            with_typed_command(contract, typed=launch, wanted=written, own=current)
            if is_alone
            else replace(contract, as_typed=TypedCommand(config=current))
        )
    if contract.files and written.world_size != launch.world_size:
        raise LaunchError("the best config changes both config files and the job size, which a job cannot undo")
    for each in filter(None, (contract, second)):
        encode_contract(each)
    changed = replace(reached, launch=written, contract=contract, suggestion=suggestion, second_attempt=second)
    return _with_block(changed, space, current, choice, options)


def _recording_line(store: str, find_obstacle: Callable[[str], str] | None) -> str:
    from torchx_cubicml.store.deadline import within

    obstacle = ""
    if find_obstacle is not None:
        with suppress(LaunchError, OSError):  # nothing is known in time
            obstacle = within(_OBSTACLE_DEADLINE_S, lambda: find_obstacle(store), what="looking at the store")
    return f"this launch will not be recorded: {obstacle}" if obstacle else f"this launch will be recorded in {store}"


def _cache_folder(options: Options) -> Path | None:
    return Path(options.cache) if options.cache else cache_folder()


def _reach_warnings(store: str, launch: Launch, options: Options) -> tuple[str, ...]:
    doubt = store_doubt(store, launch)
    return (f"{doubt}; use a shared store ({options.flags}store URL)",) if doubt else ()


def _with_block(
    changed: RewrittenLaunch, space: SearchSpace, current: Config, choice: Choice, options: Options
) -> RewrittenLaunch:
    suggestion, rows = choice.suggestion, change_rows(space, current, choice.config)
    if choice.resumes:
        with_heading = changed.with_lines(f"arguments rewritten as in launch {choice.resumes}")
        return replace(with_heading, lines=(*with_heading.lines, *aligned(rows)))
    gain = {name: getattr(suggestion, name) for name in ("gain", "gain_low", "gain_high")}
    words = "predicted gain", per_cost_text(space.objective), statistic_text(space.statistic)
    rows = [
        *rows,
        (
            " ".join(filter(None, words)),
            gain_text(gain) if suggestion.throughput is not None else "unknown; this launch measures it",
        ),
        *_time_rows(choice, space),
        *_baseline_rows(choice),
        *_error_rows(suggestion),
        ("to switch this off", f"{options.flags}mode record"),
    ]
    known = _launches(suggestion.n_trials)
    why = f"based on {known} of this workload" if choice.origin is Origin.REWRITE else f"to explore: {known} known"
    with_heading = changed.with_lines(f"arguments rewritten, {why}")
    return replace(with_heading, lines=(*with_heading.lines, *aligned(rows)))


def _error_rows(suggestion: Suggestion) -> list[tuple[str, str]]:
    """Return the row on the error of one launch; the interval of the gain may be narrower, as it pools several."""
    doubt = interval_text(suggestion.doubt)
    pools = suggestion.gain_low is not None and suggestion.n_trials > 1
    pooled = f"; the interval above pools {_launches(suggestion.n_trials)}" if pools else ""
    return [("error of a single launch", f"{doubt} at best{pooled}")] if doubt else []


def _time_rows(choice: Choice, space: SearchSpace) -> list[tuple[str, str]]:
    parts = choice.suggestion.time_to_done
    if parts is None or space.job is None:
        return []
    return [("predicted time until done", f"{seconds_text(sum(parts.values()))}: {parts_text(parts, space.job)}")]


def _baseline_rows(choice: Choice) -> list[tuple[str, str]]:
    n_baseline = choice.suggestion.n_baseline
    if choice.suggestion.gain is None or n_baseline > 1:
        return []
    return [
        ("your own config", "measured once, so the gain is uncertain" if n_baseline else "not measured, but predicted")
    ]


def _launches(count: int) -> str:
    return f"{count} launch" if count == 1 else f"{count} launches"
