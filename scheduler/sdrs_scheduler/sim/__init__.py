"""The production policy over a trace of jobs, with failures, repairs and the cost of checkpoints, in virtual time."""
