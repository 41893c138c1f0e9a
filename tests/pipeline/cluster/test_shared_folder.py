"""A folder that workers write to: a stranger's is refused, and what was written is waited for."""

import threading
from pathlib import Path

import pytest

from pipeline.cluster import ray_pool
from pipeline.cluster.ray_pool import marked, require_marked, require_seen
from pipeline.errors import ConfigError, PassingError
from pipeline.files import remove_temporaries
from tests.helpers.messages import naming


def test_another_folder_is_refused_and_no_mark_is_left(tmp_path: Path) -> None:
    with marked(tmp_path) as mark:
        require_marked(mark)
    with pytest.raises(ConfigError, match=naming("--ray-write workers: ", tmp_path)):
        require_marked(mark)
    with marked(tmp_path) as mark:
        remove_temporaries(tmp_path)  # as a later command does to what a killed one has left
        assert not list(tmp_path.iterdir())


def test_what_workers_have_written_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "early").write_bytes(b"12")
    late = threading.Timer(0.2, (tmp_path / "late").write_bytes, (b"123",))
    late.start()
    require_seen(tmp_path, {"early": 2, "late": 3})
    assert (tmp_path / "late").exists()
    monkeypatch.setattr(ray_pool, "SEEN_WITHIN_S", 0)
    with pytest.raises(PassingError, match=naming(f"{tmp_path}/early: ", "3 bytes")):
        require_seen(tmp_path, {"late": 3, "early": 3})
