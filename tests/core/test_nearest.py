"""Suggestions for misspelt file names."""

from pathlib import Path

from minitrain.core.nearest import nearest_file


def test_a_file_is_sought_beside_the_one_that_is_missing(tmp_path: Path) -> None:
    there, missing = tmp_path / "gloo-2", tmp_path / "glo-2"
    there.mkdir()
    assert nearest_file(missing) == f" (did you mean {there}?)"
    # excluded, similar only by its folder, and in a missing folder
    assert nearest_file(missing, but=[there]) == ""
    assert nearest_file(tmp_path / "other") == ""
    assert nearest_file(tmp_path / "nowhere/gloo-2") == ""
