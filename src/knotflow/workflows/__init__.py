"""What users run as a whole: the quickstart, the report, dynamics on a model."""
