"""Which ranks see a folder, and what that leaves there."""

from pathlib import Path

from minitrain.comm.together import MARK, who_sees


def test_mark_of_a_run_that_was_killed_goes(tmp_path: Path) -> None:
    (tmp_path / f"{MARK}abc").touch()
    (tmp_path / "other").touch()
    assert who_sees(tmp_path) == [True]
    assert [path.name for path in tmp_path.iterdir()] == ["other"]
