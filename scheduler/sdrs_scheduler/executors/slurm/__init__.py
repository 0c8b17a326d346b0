"""Attempts as Slurm jobs: a fresh ``sbatch`` for each, found again by its name; Slurm itself never requeues."""
