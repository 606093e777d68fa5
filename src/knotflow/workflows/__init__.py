"""What users run as a whole: simulate, train, sample, evaluate, move, report, and the quickstart."""
