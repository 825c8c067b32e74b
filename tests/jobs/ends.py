"""Ends as the first argument says on the rank that the second names; every other rank waits to be ended."""

import os
import signal
import sys
import time


def leave(how):
    if how == "raise":
        try:
            {}["missing"]
        except KeyError as error:
            raise ValueError("cannot go on: api_key=sk-live-1234567890abcdef") from error
    if how == "exit3":
        sys.exit(3)
    if how == "exit_text":
        sys.exit("nothing to train on")
    if how == "os_exit7":
        os._exit(7)
    if how == "out_of_memory":
        raise MemoryError
    if how == "SIGABRT":
        # What torch writes there before its watchdog ends the process so.
        sys.stderr.write(
            "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE)\n"
        )
    os.kill(os.getpid(), getattr(signal, how))


sys.stdout.write(f"rank {os.environ['RANK']} {sys.argv[1:]}\n")  # in one piece, for two write at once
if os.environ["RANK"] == sys.argv[2]:
    time.sleep(1)  # the others get to run first
    leave(sys.argv[1])
time.sleep(60)
