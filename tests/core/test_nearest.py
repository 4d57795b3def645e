"""Which file was probably meant."""

from pathlib import Path

from minitrain.core.nearest import nearest_file


def test_a_file_is_sought_beside_the_one_that_is_missing(tmp_path: Path) -> None:
    (tmp_path / "gloo-2").mkdir()
    there, missing = tmp_path / "gloo-2", tmp_path / "glo-2"
    assert nearest_file(missing) == f" (did you mean {there}?)"
    # what was given already is not what was meant
    assert nearest_file(missing, but=[there]) == ""
    # what all have in common, their folder, brings nothing near
    assert nearest_file(tmp_path / "other") == ""
    assert nearest_file(tmp_path / "nowhere/gloo-2") == ""
