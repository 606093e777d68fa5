"""Pictures: arrays in, files out. matplotlib is imported here and nowhere else."""
