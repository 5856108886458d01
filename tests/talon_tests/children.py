"""Processes that tests start."""

import signal


def hear_ctrl_c() -> None:
    """For a child to call: what was started with `&`, as a test run may be, ignores SIGINT, and so do its children."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
