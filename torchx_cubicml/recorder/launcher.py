"""Launcher in Python with a second attempt: ``python -m torchx_cubicml.recorder.launcher COUNT TYPED... REWRITTEN...``.

This process is the launcher (``accelerate``, ``deepspeed``) with the words ``REWRITTEN``, a script or ``-m`` and a
module, and its arguments. Signals and exit codes are the launcher's own. If the launch fails early, the process
replaces itself with the ``COUNT`` words ``TYPED``.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from torchx_cubicml.recorder.attempt.first_attempt import begin_attempt
from torchx_cubicml.recorder.process.run_program import execute, hide_own_frames, parse_program, prepare_main

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.recorder.attempt.first_attempt import FirstAttempt

_SHELLS_SIGNAL, _MOST_SIGNALS = 128, 65  # a signal's number is added to the first; numbers lie below the second
_BY_SIGNAL = "SignalException"  # with which torch's agent ends after a signal from outside


def main(words: Sequence[str]) -> None:
    """Run the launcher with the rewritten words, and once more with the typed ones if that fails early."""
    count = int(words[0])
    typed, rewritten = list(words[1 : 1 + count]), list(words[1 + count :])
    first = begin_attempt()
    program = parse_program(rewritten)
    prepare_main(program)
    try:
        execute(program)
    except SystemExit as exit_:
        if exit_.code:
            _start_as_typed(first, typed, exit_)
        raise
    except Exception as error:
        _start_as_typed(first, typed, error)
        hide_own_frames(error)
        raise
    except BaseException as error:
        hide_own_frames(error)
        raise
    finally:
        if first is not None:
            first.forget()


def _start_as_typed(first: FirstAttempt | None, typed: Sequence[str], error: BaseException) -> None:
    if first is None or type(error).__name__ == _BY_SIGNAL:
        return
    failures = getattr(error, "failures", None)  # of torch's agent
    if isinstance(failures, dict):
        exit_codes = {rank: failure.exitcode for rank, failure in failures.items()}
        first.start_as_typed(typed, exit_codes=exit_codes)
        return
    code = error.code if isinstance(error, SystemExit) else getattr(error, "returncode", None)
    first.start_as_typed(typed, ended_by=_signal_of(code))


def _signal_of(code: object) -> int:
    """Return the number of the signal that an exit code of a launcher may stand for; 0 for none.

    A program that exits with -1 has the same code as one that signal 1 ends; the notes of its rank tell them apart.

    >>> _signal_of(-11), _signal_of(139), _signal_of(245), _signal_of(1)
    (11, 11, 11, 0)
    """
    if not isinstance(code, int):
        return 0
    return next((number for number in (-code, code - _SHELLS_SIGNAL, 256 - code) if 0 < number < _MOST_SIGNALS), 0)


if __name__ == "__main__":
    main(sys.argv[1:])
