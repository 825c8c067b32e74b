"""Events: what a job sends to the store, how it is sent, and how a failure is named."""

from __future__ import annotations
