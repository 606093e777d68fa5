"""Files of frames: trajectories, samples, and what other programs write."""
