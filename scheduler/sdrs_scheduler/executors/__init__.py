"""Where attempts run: one contract (``executor``), and those who keep it."""
