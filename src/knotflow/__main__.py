"""``python -m knotflow`` is the command ``knotflow``."""

from knotflow.cli import main

main()
