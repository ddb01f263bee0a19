"""The command line: one module a command, each of which parses, calls one stage and prints."""

import signal

INTERRUPTED = 130
SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""What ends a command early, as far as the platform has it."""
