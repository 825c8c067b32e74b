"""Generated trainings that are killed and launched again, for ``resumed.py``."""
