"""``minitrain report``: what it needs, told before anything slow is imported."""

import argparse
from pathlib import Path

import pytest

from minitrain.cli.report import add_arguments, answer


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(arguments)


def test_folders_are_those_of_a_project_unless_told_otherwise() -> None:
    assert vars(options()) == {
        "data": Path("data"),
        "metrics": Path("metrics"),
        "readme": False,
    }
    assert options("--data", "built").data == Path("built")


def test_a_folder_that_is_no_project_gets_no_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Exception, match=r"params\.yaml"):
        answer(options())
    assert list(tmp_path.iterdir()) == []
