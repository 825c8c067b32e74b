"""Host of the process: hardware facts and memory use."""

from __future__ import annotations
