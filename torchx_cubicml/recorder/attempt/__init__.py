"""First attempt of a rewritten launch: notes of its ranks, whether it failed early, and the paths that it made."""
