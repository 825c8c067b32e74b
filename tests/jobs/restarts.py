"""Fails on one rank, which has imported nothing, until torchrun has started it again."""

import os
import sys
import time

if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    if os.environ["RANK"] == "1":
        raise ValueError("not yet")
    time.sleep(60)
sys.stdout.write("done\n")
