"""History: trials of a store in the terms of one command, by a list of passes."""
