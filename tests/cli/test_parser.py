"""What is wrong with arguments: one line, which says what was probably meant."""

import pytest
from one_line import refusal

from minitrain.cli import check
from minitrain.cli.check import ALL
from minitrain.cli.command import Names
from minitrain.cli.main import make_parser, run
from minitrain.train.config import OPTIMIZERS
from minitrain.train.precision import PRECISIONS

MODEL = ["check", "my_model.py:build"]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["verfy", "a", "b"],
            "COMMAND = 'verfy': must be one of record, show, check, verify, doctor, "
            "explain, report, summary (did you mean verify?)",
        ),
        (
            [*MODEL, "--optimizer", "adam"],
            "--optimizer = 'adam': must be one of adamw, sgd (did you mean adamw?)",
        ),
        (
            ["verify", "a", "--strip-prfix=module.", "b"],
            "minitrain verify: --strip-prfix: unknown option (did you mean "
            "--strip-prefix?); see minitrain verify --help",
        ),
        (
            ["--vresion"],
            "minitrain: --vresion: unknown option (did you mean --version?); see "
            "minitrain --help",
        ),
        (
            ["verify", "a", "b", "c"],
            "minitrain verify: 'c' is one argument too many; see minitrain verify "
            "--help",
        ),
        (
            ["record", "runs/x"],
            "minitrain record: no command; minitrain record FOLDER -- COMMAND",
        ),
        (
            ["verify", "a"],
            "minitrain verify: the following arguments are required: B; see minitrain "
            "verify --help",
        ),
        (
            [*MODEL, "--steps", "many"],
            "minitrain check: argument --steps: invalid int value: 'many'; see "
            "minitrain check --help",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistake_is_one_line_with_what_was_meant(
    arguments: list[str], line: str
) -> None:
    assert refusal(run, arguments) == line


def test_strategy_that_is_misspelt_is_found_among_all() -> None:
    line = refusal(run, [*MODEL, "--sync", "zero"])
    assert line.startswith("--sync = 'zero': must be one of all, ddp, ")
    assert line.endswith(" (did you mean zero1?)")
    line = refusal(run, [*MODEL, "--sync", "dpd"])
    assert line.endswith(" (did you mean ddp?)")


def test_strategy_of_ones_own_is_a_choice_too() -> None:
    options = make_parser().parse_args([*MODEL, "--sync", "mine:Mine"])
    assert options.sync == "mine:Mine"
    assert "mine" not in Names(["ddp"])


def test_choices_are_those_of_the_library() -> None:
    """They are written down twice, since the library's come with torch."""
    assert tuple(OPTIMIZERS) == check.OPTIMIZERS
    assert PRECISIONS == check.PRECISIONS
    assert make_parser().parse_args([*MODEL, "--sync", ALL]).sync == ALL
