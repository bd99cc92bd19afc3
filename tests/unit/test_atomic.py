import os
import tempfile
from pathlib import Path

from laconic.atomic import find_obstacle


def test_nothing_stands_against_a_name_that_is_free_taken_or_deep(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("taken").touch()
    for path in (Path("free"), Path("taken"), Path("a/b/c"), tmp_path / "a" / "b"):
        assert find_obstacle(path) == ""
    assert os.listdir(tmp_path) == ["taken"], "looking leaves nothing behind"


def test_what_is_in_the_way_is_named_as_it_was_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("link").symlink_to("nowhere")
    assert find_obstacle(Path("file/deep/x")) == "file is not a folder"
    assert find_obstacle(Path("link/x")) == "link is not a folder"
    assert find_obstacle(Path("x" * 300)) == "File name too long"


def test_a_place_where_nothing_can_be_made_is_found_out_by_trying():
    # Also for root, who has every right there.
    assert find_obstacle(Path("/proc/deep/x")).startswith("nothing can be made in /proc (")


def test_a_folder_without_the_rights_is_named_with_the_reason(tmp_path, monkeypatch):
    def refuse(**options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    assert find_obstacle(tmp_path / "x") == f"nothing can be made in {tmp_path} (Permission denied)"
