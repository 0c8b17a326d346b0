"""The production control code under simulated time, network, disks and MetaStore, driven by a seed."""
