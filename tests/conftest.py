"""For all tests: Ctrl-C works in the programs that they start."""

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts programs in the background with Ctrl-C ignored, and theirs inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
