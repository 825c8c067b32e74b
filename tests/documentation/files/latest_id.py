"""Print the id of the newest trial of the store: what a reader copies from `torchx cubicml history list`."""

import os

from torchx_cubicml import TrialStore

trials = sorted(TrialStore(os.path.expanduser("~/.torchx-cubicml")), key=lambda trial: trial.started_at)
print(trials[-1].trial_id)
