"""A ``distill`` command that ends with the process that started it: ``python -m distill.commands.child COMMAND …``.

A killed parent must not leave a command that writes where the repeated one goes on.
"""

import os
import sys
import threading


def end_with_parent() -> None:
    """Ends this process once the other end of its standard input is closed."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=end_with_parent, daemon=True).start()
    from distill.commands import app

    app()
