"""torchrun with a second attempt: ``python -m torchx_cubicml.recorder.torchrun COUNT TYPED... REWRITTEN...``.

This process is torchrun with the arguments ``REWRITTEN``: signals, restarts and exit codes are torchrun's own. If the
launch fails early (``attempt.early_failure``), the process replaces itself with torchrun and the ``COUNT`` arguments
``TYPED``. The second torchrun opens a new rendezvous.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from torchx_cubicml.recorder.attempt.first_attempt import begin_attempt
from torchx_cubicml.recorder.attempt.rendezvous import hosts_rendezvous

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(words: Sequence[str]) -> None:
    """Run torchrun with the rewritten arguments, and once more with the typed ones if that fails early."""
    count = int(words[0])
    typed, rewritten = list(words[1 : 1 + count]), list(words[1 + count :])
    sys.argv[:] = [torchrun.__file__, *rewritten]
    first = begin_attempt()
    if first is None:
        torchrun.main(rewritten)
        return
    try:
        torchrun.main(rewritten)
    except SignalException:
        raise
    except Exception as error:
        # Before the exception ends: its traceback holds the stores of torchrun, which close with the new program.
        failures = error.failures if isinstance(error, ChildFailedError) else {}
        exit_codes = {rank: failure.exitcode for rank, failure in failures.items()}
        command = ["-m", "torch.distributed.run", *typed]
        first.start_as_typed(command, exit_codes=exit_codes, hosts_rendezvous=partial(hosts_rendezvous, rewritten))
        raise
    finally:
        first.forget()


if __name__ == "__main__":
    main(sys.argv[1:])
