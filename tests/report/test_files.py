from pathlib import Path

import pytest

from bidroute.errors import ConfigError
from bidroute.report.files import check_writable, whole_file


def write_then_fail(path, problem):
    with whole_file(path) as file:
        file.write("new")
        raise problem


def test_the_file_appears_whole(tmp_path):
    path = tmp_path / "out.txt"
    with whole_file(path) as file:
        file.write("half")
        assert not path.exists()
        file.write(" and half")
    assert path.read_text() == "half and half"
    assert list(tmp_path.iterdir()) == [path]
    assert path.stat().st_mode & 0o400


@pytest.mark.parametrize("problem", [RuntimeError, KeyboardInterrupt])
def test_nothing_is_left_and_the_old_file_stays_when_writing_fails(tmp_path, problem):
    path = tmp_path / "out.txt"
    path.write_text("old")
    with pytest.raises(problem):
        write_then_fail(path, problem())
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_a_config_error(tmp_path):
    with pytest.raises(ConfigError, match="No space left"):
        write_then_fail(tmp_path / "out.txt", OSError(28, "No space left on device"))
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_cannot_be_written_is_refused_early(tmp_path):
    with pytest.raises(ConfigError, match="it is a folder"):
        check_writable(tmp_path)
    with pytest.raises(ConfigError, match="No such file or directory"):
        check_writable(tmp_path / "absent" / "out.json")
    (tmp_path / "plain").write_text("")
    with pytest.raises(ConfigError, match="Not a directory"):
        check_writable(tmp_path / "plain" / "out.json")
    check_writable(tmp_path / "out.json")
    assert not (tmp_path / "out.json").exists()


def test_a_device_is_written_to_and_never_replaced():
    with whole_file(Path("/dev/null")) as file:
        file.write("gone")
    assert Path("/dev/null").is_char_device()
