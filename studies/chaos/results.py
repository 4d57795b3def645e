"""Output files of the pipeline."""

import hashlib
from pathlib import Path

RUN = ("states", "sampled.pt", "losses.csv", "hashes.jsonl")
# files that are deterministic
SAME = (
    *("data/corpus.jsonl", "data/shards", "data/runs/replay-2"),
    *(f"data/runs/gloo-{size}/{name}" for size in (1, 2) for name in RUN),
)
# the last output of each target
OUTPUTS = {
    "shard": "data/shards",
    "train@1": "data/runs/gloo-1/provenance.json",
    "train@2": "data/runs/gloo-2/provenance.json",
    "replay@2": "data/runs/replay-2/machine.json",
}


def digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every deterministic file."""
    found = {}
    for name in SAME:
        path = folder / name
        files = [path] if path.is_file() else sorted(path.rglob("*"))
        for file in [file for file in files if file.is_file()]:
            digest = hashlib.sha256(file.read_bytes()).hexdigest()
            found[file.relative_to(folder).as_posix()] = digest
    return found
