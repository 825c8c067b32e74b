# A stand-in for a training on machines of two speeds: a step takes three times as long on the partition "slow", and a
# second process makes each step half as long again, so that two processes are faster and one is cheaper.
from __future__ import annotations

import os
import time

from torchx_cubicml import measure

processes = int(os.environ.get("WORLD_SIZE", "1"))
seconds = 0.03 * (3.0 if os.environ.get("SLURM_JOB_PARTITION") == "slow" else 1.0) * (1.5 if processes > 1 else 1.0)
for _ in range(16):
    time.sleep(seconds)
    measure.step(samples=100.0 * processes)
