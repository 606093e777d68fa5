"""Files of frames: trajectories, samples, and files of other programs."""
