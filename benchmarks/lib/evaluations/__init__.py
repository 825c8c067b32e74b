"""Generated loops that train and evaluate, for ``evaluations.py``."""
