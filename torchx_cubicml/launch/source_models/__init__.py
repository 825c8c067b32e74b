"""Models that the source of a program builds, counted by abstract interpretation; nothing of the program is run."""
