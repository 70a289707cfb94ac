"""`python -m appliance` and the `roomscribe` command."""

from __future__ import annotations

import os
import signal
import sys


def main() -> int:
    """Run the command line and return its exit status."""
    # numpy's BLAS would start a thread for each core for matrices that one multiplies in 2 ms
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # what is imported may swallow a KeyboardInterrupt, or end by it with a traceback
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from appliance.cli import main as cli

    signal.signal(signal.SIGINT, handler)
    try:
        return cli.run_process()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
