"""``python -m distill.commands.parent COMMAND`` runs a command that ends when its standard input is closed.

A killed parent cannot stop its processes, which would keep writing to the folder of the repeated command. The kernel
closes the pipe when the parent dies, however it dies.
"""

import os
import sys
import threading

from distill.commands import app


def _end_with_stdin() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    app()
