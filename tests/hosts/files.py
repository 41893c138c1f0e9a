"""``python -m tests.hosts.files PORT`` serves the files of a host to sshfs, without ssh. Prints its process group."""

import os
import socket
import socketserver
import subprocess
import sys

SFTP_SERVER = "/usr/lib/openssh/sftp-server"


class _Connection(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        # Otherwise each answer waits up to 40 ms for others to be sent with.
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        subprocess.run([SFTP_SERVER], stdin=self.request, stdout=self.request, check=False)


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True


if __name__ == "__main__":
    os.setsid()  # so that one signal ends the servers of all connections, too
    with _Server(("", int(sys.argv[1])), _Connection) as server:
        sys.stdout.write(f"{os.getpid()}\n")
        sys.stdout.flush()
        server.serve_forever()
