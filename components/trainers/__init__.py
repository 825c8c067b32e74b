"""Components of trainers that are whole programs, recorded and rewritten: one file each."""
