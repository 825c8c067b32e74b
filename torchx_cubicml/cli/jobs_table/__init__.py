"""Tables of past jobs: what their columns mean, and the trials that their rows hold."""
