import errno
import os
import subprocess
import sys

import duckdb
import pytest

from pipeline.sql.database import connect, disk_error

NO_FILES_LEFT = """
import resource
from pipeline.sql.database import connect
resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
try:
    connect()
except OSError as error:
    raise SystemExit(error.errno)
"""


def test_a_database_in_memory_answers() -> None:
    with connect() as connection:
        assert connection.execute("select 6 * 7").fetchall() == [(42,)]


def test_a_full_disk_is_told_from_other_errors() -> None:
    with connect() as connection:
        for sql, code in (
            ("copy (select * from range(100000)) to '/dev/full'", errno.ENOSPC),
            ("select * from a", None),
        ):
            with pytest.raises(duckdb.Error) as caught:
                connection.execute(sql)
            found = disk_error(caught.value)
            assert (found.errno if found else None) == code


def test_a_process_that_may_open_no_files_is_told_so_rather_than_ended() -> None:
    result = subprocess.run([sys.executable, "-c", NO_FILES_LEFT], env=dict(os.environ), check=False)
    assert result.returncode == errno.EMFILE
