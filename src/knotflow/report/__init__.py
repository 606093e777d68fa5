"""Pictures and pages from arrays; the only room that imports matplotlib.

Everything that draws raises ModuleNotFoundError if matplotlib, which is optional, is not installed.
"""
