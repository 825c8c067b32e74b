"""Explanation of a command before its launch: its model, memory, step time, and changes that would tell most."""
