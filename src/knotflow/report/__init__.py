"""Pictures and pages from arrays; the only room that imports matplotlib."""
