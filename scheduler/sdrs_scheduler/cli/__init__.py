"""The verbs of ``sdrs`` that are about jobs, queues and the simulator; found by the entry points ``sdrs.verbs``."""
