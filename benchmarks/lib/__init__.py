"""Helpers of the benchmarks: tables, simulators, generated trainings and rival methods."""
