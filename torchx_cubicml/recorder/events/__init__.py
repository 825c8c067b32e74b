"""Events of a recorded launch: reporting, sending, writing to the store, and classifying failures."""

from __future__ import annotations
