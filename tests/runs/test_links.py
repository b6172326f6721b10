"""A run folder that somebody sent may have links anywhere: nothing is written, emptied or removed behind one."""

import pytest

from peergrad import UserError
from peergrad.config import preset
from peergrad.debate.errors import EngineError
from peergrad.debate.settings import changed
from peergrad.runs import files
from peergrad.runs.folder import Run


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text("mine")
    return path


def test_a_file_is_written_in_place_of_a_link(tmp_path, mine):
    (tmp_path / "report.html").symlink_to(mine)
    files.write(tmp_path / "report.html", b"new")
    assert (tmp_path / "report.html").read_bytes() == b"new"
    assert not (tmp_path / "report.html").is_symlink()
    assert mine.read_text() == "mine"


def test_a_log_that_is_a_link_is_refused(tmp_path, mine):
    (tmp_path / "metrics.jsonl").symlink_to(mine)
    with pytest.raises(EngineError, match="can't be written"):
        files.append(tmp_path / "metrics.jsonl", b"{}\n")
    (tmp_path / "lock").symlink_to(mine)
    with pytest.raises(UserError, match="can't be written"), files.locked(tmp_path / "lock", "taken"):
        pass
    assert mine.read_text() == "mine"


@pytest.mark.parametrize("name", ["prompts", "debates", "checkpoints"])
def test_a_folder_that_is_a_link_is_refused(tmp_path, mine, name):
    run = Run(tmp_path / "run")
    run.path.mkdir()
    (run.path / name).symlink_to(mine.parent)
    with (
        pytest.raises(UserError, match="is a link"),
        run.opened(changed(preset("demo-parallel"), {"out": run.path}, "test"), {}),
    ):
        pass
    assert mine.read_text() == "mine"


def test_what_is_added_does_not_become_part_of_a_torn_line(tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_bytes(b'{"a": 1}\n{"b": ')
    files.append(log, b'{"c": 3}\n')
    assert files.read_records(log) == [{"a": 1}, {"c": 3}]
