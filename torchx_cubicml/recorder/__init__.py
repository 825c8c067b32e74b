"""Inside the training process: runs the user's program unchanged, and records what it did.

``torchrun ... -m torchx_cubicml.recorder -- script.py args`` stands for ``torchrun ... script.py args``.
"""

from __future__ import annotations
