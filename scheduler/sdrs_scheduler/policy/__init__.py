"""Which job runs next, where, and who has to make room: pure, and shared with the simulator."""
