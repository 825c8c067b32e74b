"""Roles of columns in a trial, beside facts and parameters: throughput, status, start, memory."""

from __future__ import annotations

PROGRAM = "program"
STATUS = "status"
STARTED_AT = "started_at"
PEAK_MEMORY = "peak_memory_gib"
OUTCOME = "outcome"
GLOBAL_BATCH_TOKENS = "global_batch_tokens"
DEVICE_BATCH = "device_batch_size"
"""Samples of a step on one data-parallel rank: micro batch x accumulation."""

STEP_TIME = "step_time"
DEVICE_COUNT = "world_size+device"
"""A cell such as 8xA100 names both."""

RATES_PER_SECOND = (
    "tokens_per_second",
    "tokens_per_second_per_device",
    "samples_per_second",
    "samples_per_second_per_device",
    "steps_per_second",
)
MICRO_BATCH_TIMES = {
    "seconds_per_step": "seconds_per_micro_batch",
    "milliseconds_per_step": "milliseconds_per_micro_batch",
}
"""Time of a step -> time of one of its micro batches, which a step of several takes as often."""

STEP_TIMES = (*MICRO_BATCH_TIMES, *MICRO_BATCH_TIMES.values())
UNITS = (*RATES_PER_SECOND, *STEP_TIMES)
"""Units of the column from which throughput is read."""

ROLES = (STATUS, STARTED_AT, PEAK_MEMORY, OUTCOME, *UNITS)
"""Names that ``--map`` accepts beside those of facts and parameters."""

PRECISION_SWITCH = "precision="
"""Begins the name of a column that switches one number format on, such as ``precision=fp8``."""

THROUGHPUT_CHOICES = RATES_PER_SECOND[:4]
"""Units that a heading without one may mean."""
