"""The daemon: edges, fragments on disk, and the control plane."""
