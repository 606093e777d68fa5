"""Numbers with error bars, weights and memory of samples: arrays in, numbers out."""
