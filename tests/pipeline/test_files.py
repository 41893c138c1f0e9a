import errno
import os
import resource
import stat
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256 as reference
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tokenizers import Tokenizer, models

from pipeline.errors import DataError, PassingError
from pipeline.files import (
    library_writes,
    locked,
    make_folder,
    remove_temporaries,
    sha256,
    write_alone,
    write_atomically,
    write_error,
    write_text,
    write_text_once,
)
from pipeline.training.checkpoint import save_checkpoint


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("before", [None, "old"])
@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt])
def test_failed_write_leaves_nothing_behind(tmp_path: Path, before: str | None, kind: type[BaseException]) -> None:
    path = tmp_path / "a.txt"
    if before:
        path.write_text(before)

    def write(temporary: Path) -> None:
        temporary.write_text("half")
        assert names(tmp_path) == sorted([temporary.name, *([path.name] if before else [])])
        raise kind

    with pytest.raises(kind):
        write_atomically(path, write)
    assert names(tmp_path) == (["a.txt"] if before else [])
    assert not before or path.read_text() == before


def test_write_replaces_the_whole_file(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "a longer text")
    write_text(tmp_path / "a.txt", "é")
    assert (tmp_path / "a.txt").read_bytes() == "é".encode()
    assert names(tmp_path) == ["a.txt"]


def write_table(path: Path) -> None:
    table = pa.table({"x": np.random.default_rng(0).random(50_000)})
    write_atomically(path, lambda temporary: pq.write_table(table, temporary))


def write_weights(path: Path) -> None:
    model = torch.nn.Linear(200, 200)
    save_checkpoint(path, model, torch.optim.SGD(model.parameters()), {})


@pytest.mark.parametrize("write", [lambda path: write_text(path, "x" * 100_000), write_table, write_weights])
def test_write_that_the_system_cuts_short(tmp_path: Path, write: Callable[[Path], None]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(DataError, match=r"file: .*[Ff]ile too large"):
            write(tmp_path / "file")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (errno.ENOSPC, "disk"),
        (errno.EACCES, "permission"),
        (errno.EROFS, "permission"),
        (errno.EIO, "repeat the command"),
    ],
)
def test_errors_say_what_to_do(code: int, advice: str) -> None:
    assert advice in str(write_error(Path("shard"), OSError(code, "reason")))


def test_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="file/folder: "):
        make_folder(tmp_path / "file" / "folder")
    make_folder(tmp_path / "a" / "b")
    assert names(tmp_path / "a" / "b") == []


def test_a_full_disk_that_a_library_tells_of_in_its_own_words() -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0}, "a"))
    with pytest.raises(PassingError, match="folder: "), library_writes(Path("folder")):
        tokenizer.save("/dev/full")
    with pytest.raises(KeyError), library_writes(Path("a")):
        raise KeyError("a")


def test_a_folder_is_tried_without_a_name_that_a_kill_could_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    usual = os.open

    def noted(path: str, *arguments: int) -> int:
        opened.append(str(path))
        return usual(path, *arguments)

    monkeypatch.setattr(os, "open", noted)
    make_folder(tmp_path / "a")
    assert {Path(name) for name in opened} == {tmp_path / "a"}  # a file without a name is opened by its folder's


def test_a_folder_that_cannot_be_flushed_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = errno.EINVAL

    def flush(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", flush)
    write_text(tmp_path / "a.txt", "whole")
    assert (tmp_path / "a.txt").read_text() == "whole"
    code = errno.EIO
    with pytest.raises(DataError, match=r"a\.txt: "):
        write_text(tmp_path / "a.txt", "whole")


def test_what_cannot_be_removed_does_not_hide_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    def write(temporary: Path) -> None:
        monkeypatch.setattr(Path, "unlink", refuse)
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(DataError, match=r"a\.txt: "):
        write_atomically(tmp_path / "a.txt", write)


def test_a_lock_that_cannot_be_written_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="file/lock: "), locked(tmp_path / "file" / "lock", "busy"):
        pass


def test_first_writer_wins(tmp_path: Path) -> None:
    write_text_once(tmp_path / "a.txt", "first")
    write_text_once(tmp_path / "a.txt", "second")
    assert (tmp_path / "a.txt").read_text() == "first"
    assert names(tmp_path) == ["a.txt"]
    with pytest.raises(DataError, match=r"gone/a\.txt: "):
        write_text_once(tmp_path / "gone" / "a.txt", "text")


def test_one_of_several_processes_wins_and_all_see_it_whole(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from pipeline.files import write_text_once\n"
        "write_text_once(Path(sys.argv[1]), sys.argv[2] * 50000); print(Path(sys.argv[1]).read_text()[::10000])"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "a.txt")]
    processes = [subprocess.Popen([*command, letter], stdout=subprocess.PIPE, text=True) for letter in "abcd"]
    seen = {process.communicate(timeout=60)[0].strip() for process in processes}
    assert len(seen) == 1
    assert seen.pop() in {letter * 5 for letter in "abcd"}
    assert names(tmp_path) == ["a.txt"]


def test_leftovers_of_killed_processes_are_removed(tmp_path: Path) -> None:
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / ".train.parquet.17.distill-tmp").touch()
    (tmp_path / "examples" / ".tmpA1b2C3").touch()  # as safetensors names its own
    (tmp_path / "keep.tmp").touch()
    remove_temporaries(tmp_path)
    assert names(tmp_path / "examples") != []  # only the folder itself: another process may write below it
    remove_temporaries(tmp_path / "examples")
    assert names(tmp_path) == ["examples", "keep.tmp"]
    assert names(tmp_path / "examples") == []


def test_leftovers_of_a_single_file_go_when_it_is_written_again(tmp_path: Path) -> None:
    for name in (".a[1].html.17.distill-tmp", ".b.html.17.distill-tmp"):
        (tmp_path / name).touch()
    write_alone(tmp_path / "a[1].html", lambda temporary: temporary.write_text("whole"))
    assert names(tmp_path) == [".b.html.17.distill-tmp", "a[1].html"]
    with pytest.raises(DataError, match=r"nowhere/a\.html: "):
        write_alone(tmp_path / "nowhere" / "a.html", lambda temporary: temporary.write_text("whole"))


def test_what_another_process_is_writing_is_no_leftover(tmp_path: Path) -> None:
    path = tmp_path / "a.html"

    def write_while_another_does(temporary: Path) -> None:
        temporary.write_text("last")
        write_alone(path, lambda other: other.write_text("first"))
        assert path.read_text() == "first"

    write_alone(path, write_while_another_does)
    assert path.read_text() == "last"
    assert names(tmp_path) == ["a.html"]


def test_sha256(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert sha256(tmp_path / "a") == reference(b"abc").hexdigest()


def test_a_temporary_file_that_another_job_removed_is_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, others = tmp_path / "record.json", [1]
    chmod = Path.chmod

    def removed_before(temporary: Path, mode: int) -> None:
        if others:
            others.pop()
            remove_temporaries(tmp_path)
        chmod(temporary, mode)

    monkeypatch.setattr(Path, "chmod", removed_before)
    write_text(path, "whole")
    assert not others
    assert path.read_text() == "whole"
    with pytest.raises(DataError, match=r"nowhere/record\.json: "):
        write_text(tmp_path / "nowhere" / "record.json", "whole")
