"""Exchange of small facts between the ranks of a job, through the TCPStore."""

from __future__ import annotations
