"""Trains nothing: says when it is done, by the clock."""

import os
import time

if os.environ["RANK"] == "0":
    print(f"done {time.time()}", flush=True)
