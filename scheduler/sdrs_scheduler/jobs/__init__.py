"""What a job is, and what happens to it: pure values and decisions, no clock, no socket, no process."""
