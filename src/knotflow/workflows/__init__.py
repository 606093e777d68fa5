"""What users run as a whole: simulate, train, sample, evaluate, move, report, and all of it in a run."""
