import errno
import os
import subprocess
import sys

from pipeline.database import connect

NO_FILES_LEFT = """
import resource
from pipeline.database import connect
resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
try:
    connect()
except OSError as error:
    raise SystemExit(error.errno)
"""


def test_a_database_in_memory_answers() -> None:
    with connect() as connection:
        assert connection.execute("select 6 * 7").fetchall() == [(42,)]


def test_a_process_that_may_open_no_files_is_told_so_rather_than_ended() -> None:
    result = subprocess.run([sys.executable, "-c", NO_FILES_LEFT], env=dict(os.environ), check=False)
    assert result.returncode == errno.EMFILE
