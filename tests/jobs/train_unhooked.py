"""Its steps are nobody's to see; the last rank prints what it measured, in the words of a well-known trainer."""

import os
import sys
import time

import torch.distributed as dist

dist.init_process_group("gloo")
for step in range(1, 9):
    time.sleep(0.01)
    if dist.get_rank() == dist.get_world_size() - 1:
        sys.stdout.write(
            f" [2024-03-07 15:27:{step:02d}.120413] iteration {step:8d}/  500000 | consumed samples: {step * 32:12d} |"
            f" elapsed time per iteration (ms): {900.0 if step < 3 else 200.0 + step:.1f} | global batch size:    32 |"
            " lm loss: 1.070001E+01 |\n"
        )
if os.environ["RANK"] == "0":
    sys.stdout.write("wall 1.0\n")  # one write, so that no line of the other rank comes between
dist.destroy_process_group()
