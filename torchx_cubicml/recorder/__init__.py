"""Recorder inside the training process: it runs the user's program unchanged and records facts and throughput.

``torchrun ... -m torchx_cubicml.recorder -- script.py args`` stands for ``torchrun ... script.py args``.
"""

from __future__ import annotations
