"""Entry point ``cubicrun``: a drop-in replacement for torchrun that records and rewrites the launch.

It takes the same arguments, returns the same exit code, passes the same signals and needs no TorchX scheduler. The
process decides on the config, then replaces itself with torchrun (``execve``). A failure is reported in one line, and
torchrun runs as typed. Behind ``--``, a command with another launcher runs in place of torchrun. On several nodes, or
where only the job knows its size, rank 0 decides (``rewrite.in_job``).
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TextIO

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.launch.launchers.command_launch import DRY_RUN, FLAGS, OPTIONS, SWITCHES, is_command, split_options
from torchx_cubicml.launch.messages import NOT_RECORDED, message_line
from torchx_cubicml.records.contract import CONTRACT_VARIABLE, SECOND_ATTEMPT_VARIABLE, encode_contract
from torchx_cubicml.records.trial import new_id
from torchx_cubicml.settings import KEEP_COMMAND, PREFIX, child_environment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchx_cubicml.launch import Launch, TorchrunLaunch
    from torchx_cubicml.launch.launchers.command_launch import CommandLaunch
    from torchx_cubicml.records.contract import Contract
    from torchx_cubicml.rewrite.rewriter import Options

    AnyLaunch = TorchrunLaunch | CommandLaunch

# torchrun's own messages bear the name that the user typed.
_TORCHRUN = ("-c", "import sys; sys.argv[0] = 'cubicrun'; from torch.distributed.run import main; main()")
_TORCHRUN_WITH_SECOND_ATTEMPT = "torchx_cubicml.recorder.torchrun"
_IN_JOB_MODULE = "torchx_cubicml.rewrite.in_job"
USAGE = (
    "usage: cubicrun [--cubicml-space FILE] [--cubicml-store URL] [--cubicml-mode rewrite|record|off] "
    "[--cubicml-keep-command] [--cubicml-dryrun] TORCHRUN ARGUMENTS | -- COMMAND\n"
)
HELP = f"""{USAGE}
Run torchrun and record the launch. With a space file (TOML), start it with the best known config. Put our options
before torchrun's, or set them under [component:cubicml] in .torchxconfig or as TORCHX_CUBICML_SPACE,
TORCHX_CUBICML_STORE, TORCHX_CUBICML_MODE and TORCHX_CUBICML_KEEP_COMMAND (yes). With --cubicml-dryrun, print the
command and start nothing. Behind --, a COMMAND with another launcher (accelerate launch, deepspeed, mpirun, srun,
python) runs in place of torchrun. torchrun's own help follows.

"""
_PROBE_TIMEOUT_S = 30.0  # enough to start Python on a slow file system


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Command that replaces this process.

    Args:
        args: arguments of torchrun, or the words of a whole command.
        is_command: whether ``args`` are a whole command.
        second_args: arguments of torchrun for a second attempt, if the first one fails early; empty without.
        env: environment variables to set in addition.
        lines: lines to print on stderr first.
    """

    args: tuple[str, ...]
    is_command: bool = False
    second_args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    lines: tuple[str, ...] = ()

    @property
    def command(self) -> list[str]:
        """Words of the command."""
        if self.is_command:
            return list(self.args)
        words = [*_TORCHRUN, *self.args]
        if self.second_args:
            words = ["-m", _TORCHRUN_WITH_SECOND_ATTEMPT, str(len(self.second_args)), *self.second_args, *self.args]
        # -P: Python would add the working directory to the path, and the command torchrun does not.
        return [sys.executable, "-P", *words]


def main() -> NoReturn:
    """Decide on the config, then replace this process with torchrun."""
    given, args = split_options(sys.argv[1:])
    is_dry_run = bool(given.pop(DRY_RUN, ""))
    if args[:1] in (["-h"], ["--help"]):
        is_dry_run = False  # torchrun's own help follows ours
        _write(sys.stdout, HELP)
    if wrong := usage_error(args):
        _write(sys.stderr, f"{USAGE}cubicrun: error: {wrong}\n")
        sys.exit(2)
    typed = _typed_plan(args)
    plan = plan_launch(given, args, is_dry_run=is_dry_run)
    _write(sys.stderr, "".join(f"{line}\n" for line in plan.lines))
    if is_dry_run:
        sys.exit(0)
    try:
        _execute(plan)
    except OSError as error:  # the added arguments or variables exceed the system's limit, or there is no such command
        if not isinstance(error, FileNotFoundError | PermissionError):
            _write(sys.stderr, f"{message_line(f'{NOT_RECORDED}: {error.strerror or error}')}\n")
    try:
        _execute(typed)
    except OSError as error:
        _write(sys.stderr, f"cubicrun: error: {typed.command[0]} does not start: {error.strerror or error}\n")
        sys.exit(127 if isinstance(error, FileNotFoundError) else 126)  # as a shell ends


def usage_error(args: Sequence[str]) -> str:
    """Return the error in the words behind our options; empty without one.

    >>> usage_error(["--cubicml-spaces=s.toml", "train.py"]).partition(";")[0]
    'unknown option --cubicml-spaces'
    """
    if not args:
        return "give a script to run, as in: cubicrun --nproc_per_node 2 train.py"
    if list(args) == ["--"]:
        return "give a command behind --, as in: cubicrun -- accelerate launch train.py"
    option, joined, _ = args[0].partition("=")
    if not option.startswith(FLAGS):
        return _launcher_hint(args)
    name = option.removeprefix(FLAGS)
    if name in OPTIONS:
        return f"option {option} lacks its value"
    if joined and name.replace("-", "_") in SWITCHES:
        return f"option {option} takes no value"
    legal = ", ".join(f"{FLAGS}{each.replace('_', '-')}" for each in (*OPTIONS, *SWITCHES))
    return f"unknown option {option}; choose from {legal}"


def _launcher_hint(args: Sequence[str]) -> str:
    """Return the error of a command that lacks the ``--`` in front of its launcher; empty if it names a script."""
    from torchx_cubicml.launch.launchers.table import is_launcher

    if not is_launcher(args[0]) or Path(args[0]).exists():
        return ""
    return f"put -- in front of another launcher, as in: cubicrun -- {' '.join(args[:2])} ..."


def plan_launch(given: Mapping[str, str], args: Sequence[str], *, is_dry_run: bool = False) -> Plan:
    """Return the command to run: torchrun with the recorder in front of the program, or torchrun as typed.

    Args:
        given: our options from the command line.
        args: arguments of torchrun, or ``--`` and a command with a launcher of its own.
        is_dry_run: whether the plan's lines show the command, which is not run.
    """
    typed = _typed_plan(args)
    if args[0] in {"-h", "--help"}:
        return typed
    try:
        from torchx_cubicml.launch import TorchrunLaunch
        from torchx_cubicml.rewrite.rewriter import Options

        options = Options.resolved(**given, flags=FLAGS)
        if options.mode == "off":
            return replace(typed, lines=_shown_typed(args)) if is_dry_run else typed
        if typed.is_command:
            return _plan_command(typed.args, options, is_dry_run=is_dry_run)
        command = TorchrunLaunch.parse(args, env=child_environment({}))
        python = command.python(torchrun_python=(sys.executable,))
        _check_python(python)
        if _needs_job(command, options):
            return _plan_in_job(command, options, is_dry_run=is_dry_run)
        return _plan_here(command, options, is_own_python=python == (sys.executable,), is_dry_run=is_dry_run)
    except Exception as error:  # noqa: BLE001 - a defect of ours or of a library must not stop the user's training
        why = str(error) if isinstance(error, LaunchError) else f"{type(error).__name__}: {error}"
        shown = _shown_typed(args) if is_dry_run else ()
        return replace(typed, lines=(message_line(f"{NOT_RECORDED}: {why}"), *shown))


def _shown(what: str, words: Sequence[str], env: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return the lines of a dry run that show a command, without the recorder."""
    from torchx_cubicml.records.shell_words import shell_word
    from torchx_cubicml.rewrite.dry_run import dry_run_command

    settings = [f"{name}={shell_word(value)}" for name, value in (env or {}).items()]
    return dry_run_command(what, [*settings, *map(shell_word, words)])


def _shown_typed(args: Sequence[str]) -> tuple[str, ...]:
    plan = _typed_plan(args)
    words = plan.args if plan.is_command else ("torchrun", *plan.args)
    return _shown(f"{Path(words[0]).name} would run as typed", words)


def _typed_plan(args: Sequence[str]) -> Plan:
    """Return the plan that runs the user's own command."""
    return Plan(args=tuple(args[1:]), is_command=True) if is_command(args) else Plan(args=tuple(args))


def _plan_command(words: Sequence[str], options: Options, *, is_dry_run: bool) -> Plan:
    from torchx_cubicml.launch.launchers.command_launch import CommandLaunch

    command = CommandLaunch.parse(words, env=child_environment({}))
    if command.starts_as_typed:
        plan = _plan_here(command, options, is_own_python=False, is_dry_run=is_dry_run)
        return replace(_started_as_typed(plan, command), args=tuple(words), is_command=True)
    python = command.python()
    _check_python(python)
    plan = _plan_here(command, options, is_own_python=python == (sys.executable,), is_dry_run=is_dry_run)
    return replace(plan, is_command=True)


def _started_as_typed(plan: Plan, command: CommandLaunch) -> Plan:
    """Return the plan by whose variables the Python in a command that starts as typed becomes the recorded launch."""
    from torchx_cubicml.recorder.behind import start_variables

    if not plan.env:
        return plan
    script, typed, recorded = command.process_words(plan.args)
    path = child_environment({}).get("PYTHONPATH")
    env = start_variables(typed, recorded, script=script, variables=plan.env, search_path=path)
    if not command.before:
        return replace(plan, env=env)
    condition = (
        f"if {command.before[0]} passes PYTHONPATH to a Python with this package; else your command runs as typed"
    )
    return replace(plan, env=env, lines=(*plan.lines, message_line(condition)))


def _plan_here(command: AnyLaunch, options: Options, *, is_own_python: bool, is_dry_run: bool) -> Plan:
    from torchx_cubicml.launch import TorchrunLaunch
    from torchx_cubicml.launch.torchrun_command import RECORDER
    from torchx_cubicml.rewrite.rewriter import rewrite
    from torchx_cubicml.store.obstacle import folder_obstacle, write_obstacle

    find_obstacle = write_obstacle if is_own_python else folder_obstacle
    rewritten = rewrite(command.launch, options, find_obstacle=find_obstacle)
    changes = {name: value for name, value in rewritten.launch.env.items() if command.env.get(name) != value}
    launch, second, lines = rewritten.launch, rewritten.second_attempt, rewritten.lines
    if is_dry_run:
        what = "as typed" if rewritten.contract is None else "with the recorder in front of the program"
        words = _unrecorded(command, launch)
        lines = (*lines, *_shown(f"{Path(words[0]).name} would run {what}", words, changes))
    if rewritten.contract is None:
        return Plan(args=command.args, lines=lines)
    # Where each node or rank runs cubicrun, only rank 0 can choose a trial id for all of them.
    trial_id = _trial_id(launch, rewritten.contract) if command.starts_all else ""
    contract = encode_contract(replace(rewritten.contract, trial_id=trial_id))
    plan = Plan(
        args=tuple(command.with_launcher_of(launch).wrapped(launch.script_args, recorder=RECORDER)),
        env={**changes, CONTRACT_VARIABLE: contract},
        lines=lines,
    )
    if second is None:
        return plan
    env = {**plan.env, SECOND_ATTEMPT_VARIABLE: encode_contract(replace(second, trial_id=trial_id))}
    second_args = command.wrapped(command.launch.script_args, recorder=RECORDER)
    if isinstance(command, TorchrunLaunch):
        return replace(plan, second_args=tuple(second_args), env=env)
    return replace(plan, args=tuple(command.with_second_attempt(plan.args, second_args)), env=env)


def _trial_id(launch: Launch, contract: Contract) -> str:
    """Return the trial id of a launch; a Slurm job that is requeued derives the same again."""
    from torchx_cubicml.recorder.process.assignment import trial_id_of_step
    from torchx_cubicml.settings import read_job_environment

    words = launch.program, *launch.script_args
    found = trial_id_of_step(read_job_environment(), words, contract.config, process=os.getpid())
    return found or new_id("trial")


def _unrecorded(command: AnyLaunch, launch: Launch) -> list[str]:
    """Return the words that a person would type for ``launch``, without the recorder."""
    from torchx_cubicml.launch import TorchrunLaunch

    words = command.with_launcher_of(launch).typed(launch.script_args)
    return ["torchrun", *words] if isinstance(command, TorchrunLaunch) else words


def _needs_job(command: TorchrunLaunch, options: Options) -> bool:
    """Return whether only the job can decide on the rewrite; a job of elastic size is never rewritten."""
    nnodes = command.parts.nnodes
    open_size = nnodes is not None and (nnodes > 1 or command.parts.nproc_per_node is None)
    return open_size and bool(options.space) and options.mode in {"", "rewrite"}


def _plan_in_job(command: TorchrunLaunch, options: Options, *, is_dry_run: bool) -> Plan:
    from torchx_cubicml.launch.torchrun_command import RECORDER
    from torchx_cubicml.settings import default_store_url
    from torchx_cubicml.store import absolute_url

    options_in_job = {
        "space": str(Path(options.space).absolute()),
        "store": absolute_url(options.store or default_store_url(), for_launch=True),
        "mode": "rewrite",
        **({KEEP_COMMAND: "yes"} if options.keeps_command else {}),
    }
    variables = {f"{PREFIX}{name.upper()}": value for name, value in options_in_job.items()}
    what = "torchrun would run with the recorder in front of the program, and with the arguments that rank 0 chooses"
    shown = _shown(what, ["torchrun", *command.args]) if is_dry_run else ()
    return Plan(
        args=tuple(command.wrapped(command.launch.script_args, recorder=_IN_JOB_MODULE)),
        second_args=tuple(command.wrapped(command.launch.script_args, recorder=RECORDER)),
        env={**variables, CONTRACT_VARIABLE: ""},
        lines=(message_line("rank 0 will choose the config once all ranks have joined"), *shown),
    )


def _check_python(python: tuple[str, ...]) -> None:
    """Check that the program's Python can load the recorder, if it is another Python than this one.

    Args:
        python: words that start it.

    Raises:
        LaunchError: the recorder cannot be loaded.
    """
    if python == (sys.executable,):
        return
    from torchx_cubicml.launch.recorder_fallback import PROBE

    try:
        probe = subprocess.run(
            [*python, "-c", PROBE],
            capture_output=True,
            text=True,
            timeout=_PROBE_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"{python[0]} does not start: {error}") from error
    if probe.returncode:
        raise LaunchError(
            f"{python[0]} cannot load the recorder: {probe.stdout.strip() or probe.stderr.strip()[-200:]}"
        )


def _write(stream: TextIO, text: str) -> None:
    with contextlib.suppress(AttributeError, OSError, ValueError):  # the stream is closed
        stream.write(text)
        stream.flush()


def _execute(plan: Plan) -> NoReturn:
    """Replace this process, as ``execvp`` does: what has no format that the system knows is a script of the shell."""
    command, environment = plan.command, child_environment(plan.env)
    for each in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and what it starts would inherit that
        signal.signal(each, signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606 - a shell would intercept signals
    except OSError as error:
        found = shutil.which(command[0])
        if error.errno != errno.ENOEXEC or found is None:
            raise
        os.execve("/bin/sh", ["/bin/sh", found, *command[1:]], environment)  # noqa: S606 - likewise


if __name__ == "__main__":
    main()
