"""What several tests use, and nobody else."""
