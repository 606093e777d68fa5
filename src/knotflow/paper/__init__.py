"""The paper's figures and tables, and what goes beyond them, one file each."""
