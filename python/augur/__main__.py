"""The program: `python -m augur ARGS`, and `augur ARGS` where the package is installed."""

import atexit
import os
import signal
import sys

from augur import _library, _processes


def main() -> None:
    # As in a program of its own: Python would not see Ctrl-C before the engine returns.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    _processes.join()
    code = _library.run_program(sys.argv[1:])
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    # Torch's libraries do not all survive the destructors of their statics, nor a process group its own.
    os._exit(code)


if __name__ == "__main__":
    main()
