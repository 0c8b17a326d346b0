"""How GPUs are: a probe that reads them, and verdicts on what it read."""
