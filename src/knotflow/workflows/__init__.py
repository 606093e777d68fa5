"""What users run as a whole: samples, evaluations and dynamics of model files, the report, the quickstart."""
