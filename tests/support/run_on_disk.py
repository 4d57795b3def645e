"""A training run as the files that the stage train leaves."""

from pathlib import Path

from minitrain.proof.evidence import Evidence
from minitrain.train.outputs import write_records
from minitrain.train.step_record import save_tensors


def write(folder: Path, outcome: Evidence) -> Path:
    """The files of a training run that the comparison reads."""
    folder.mkdir(parents=True)
    save_tensors(folder / "sampled.pt", outcome.sampled)
    write_records(folder, outcome.results, threads=1)
    for rank, state in enumerate(outcome.states):
        save_tensors(folder / f"states/state-rank-{rank}.pt", state)
    return folder
