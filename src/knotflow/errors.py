"""Exceptions of knotflow; each message says in one sentence what to do."""


class ConfigError(ValueError):
    """An invalid configuration; the message names the key and what is allowed."""


class TrainingError(RuntimeError):
    """An unstable training; the last good state is on disk."""
