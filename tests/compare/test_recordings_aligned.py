"""Recordings that are aligned before they are compared: resumed runs, padded rows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded import adamw, alter, record, rows_of, write
from torch import Tensor, tensor

from minitrain.compare.align import same_samples
from minitrain.compare.difference import Cause
from minitrain.compare.recordings import RecordingsCompared, compare_recordings
from minitrain.recording.inputs import sample_digests

START, STEPS = 6, 12
Change = Callable[[dict[str, Any]], None]


def resumed(folder: Path, straight: Path, change: Change) -> Path:
    """The rows of ``straight`` from START on, as a run that counts from 0 has them."""
    header, *rows, end = rows_of(straight)
    kept = [row for row in rows if row["step"] >= START]
    header |= {"start": kept[0]["before"]}
    for row in kept:
        row["step"] -= START
        change(row)
    end |= {"steps": {"0": STEPS - START}}
    folder.mkdir()
    write(folder, [header, *kept, end])
    return folder


def test_resumed_run_is_compared_from_where_it_resumes(tmp_path: Path) -> None:
    """And each fault of a resume is named; the right one is equal to the bit."""
    straight = record(tmp_path / "a", steps=STEPS, every=1, optimizer=adamw)
    first_read = rows_of(straight)[1]["inputs"]

    def other_rate(row: dict[str, Any]) -> None:
        row["lr"] = [2 * rate for rate in row["lr"]] if row["step"] else row["lr"]

    def other_state(row: dict[str, Any]) -> None:
        row.update(
            moments=dict.fromkeys(row["moments"], "0" * 32),
            lr=[2 * rate for rate in row["lr"]],
        )

    def other_data(row: dict[str, Any]) -> None:
        row.update(inputs=first_read)
        for entry in row["gradients"].values():
            entry.update(hash="0" * 32, sketch=[*reversed(entry["sketch"])])

    faults: dict[str, tuple[Change, int, Cause]] = {
        "rate": (other_rate, START + 1, Cause.SCHEDULER_LOST),
        "state": (other_state, START, Cause.OPTIMIZER_LOST),
        "data": (other_data, START, Cause.POSITION_LOST),
    }
    good = resumed(tmp_path / "good", straight, lambda row: None)
    for pair in ((straight, good), (good, straight)):
        found = compare_recordings(*pair)
        assert (found.verdict, found.steps[0].step) == ("equal bits", START)
        assert "resumes" in found.asides[0]
    for name, (change, step, cause) in faults.items():
        bad = resumed(tmp_path / name, straight, change)
        first = compare_recordings(straight, bad).first
        assert first
        assert (first.step, first.why.cause) == (step, cause)


def rows_read(*rows: list[int], labels: bool = False) -> dict[int, dict[str, Any]]:
    """As the recorder writes rows of token ids, with 9 as the padding."""
    longest = max(map(len, rows))
    ids = tensor([[*row, *[9] * (longest - len(row))] for row in rows])
    more = [torch.where(ids == 9, -100, ids)] if labels else []
    digests, _, unpadded = sample_digests([ids, *more])
    return {0: {"inputs": [digests], "unpadded": [unpadded]}}


@pytest.mark.parametrize("labels", [False, True])
def test_rows_are_the_same_whatever_their_padding(labels: bool) -> None:
    short, middle, long = [1, 2], [3, 4, 4, 5], [6, 7, 8, 1, 2, 3, 3]
    whole = rows_read(short, middle, long, labels=labels)
    for parts in (([short, middle], [long]), ([short], [middle, long])):
        dealt = {n: rows_read(*p, labels=labels)[0] for n, p in enumerate(parts)}
        assert same_samples(whole, dealt)
        assert not same_samples(whole, {0: dealt[0]})
    for other in ([3, 4, 4, 6], [3, 4, 4], [3, 5, 4, 5]):
        assert not same_samples(whole, rows_read(short, other, long, labels=labels))


def compared(a: Path, b: Path, change: Change) -> RecordingsCompared:
    for rank in (0, 1):
        alter(b, rank, change)
    return compare_recordings(a, b)


def test_a_pattern_in_the_gradients_comes_before_the_data(tmp_path: Path) -> None:
    """Rows that hash otherwise are no other data where gradients are twice as large;
    where no combination of gradients explains them they are.
    """

    def smooth(found: Tensor, targets: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(found, targets, label_smoothing=0.5)

    def double(found: Tensor, targets: Tensor) -> Tensor:
        return 2 * torch.nn.functional.cross_entropy(found, targets)

    def pad(row: dict[str, Any]) -> None:
        row["inputs"] = [[f"{digest[:15]}x" for digest in row["inputs"][0]]]

    a = record(tmp_path / "a", steps=3, world_size=2)
    for name, loss, what in (("b", double, "gradients"), ("c", smooth, "data")):
        b = record(tmp_path / name, steps=3, world_size=2, loss=loss)
        first = compared(a, b, pad).first
        assert first
        assert first.sure
        assert first.what in (what, f"own {what}")
