"""Errors with names of their own; each says in one sentence what to do."""


class ConfigError(ValueError):
    """A configuration that cannot be used; the message names the key and what is allowed."""


class TrainingError(RuntimeError):
    """Training could not be kept stable; the last good state is on disk."""
