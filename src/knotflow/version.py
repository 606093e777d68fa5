"""The version of knotflow."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("knotflow")
except PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = "0+unknown"
