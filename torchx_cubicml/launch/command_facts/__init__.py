"""Facts of a training that its command tells before any launch; nothing is run."""
