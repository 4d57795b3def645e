"""Sharding the corpus for every world size.

    python -m stages.shard

Sample i goes to rank i % world_size. The index of each folder proves that its shards
together are the corpus, without overlap.
"""

from pathlib import Path

from minitrain.core.errors import run_stage
from minitrain.core.files import atomic_path, each_row
from minitrain.core.params import load_params
from minitrain.core.progress import progress
from minitrain.data.shards import tokenize_corpus, write_shards


def main() -> None:
    params = load_params(Path("params.yaml"))
    rows = progress(each_row(Path("data/corpus.jsonl"), "text"), "shard")
    samples, num_long = tokenize_corpus(
        (row["text"] for row in rows),
        params.model.block_size,
        params.shard.long_samples,
    )
    print(f"{len(samples)} samples, {len(samples.tokens)} tokens")
    print(f"{num_long} longer than the block: {params.shard.long_samples}")

    # Atomic over all world sizes: the stage's output is the parent folder.
    with atomic_path(Path("data/shards")) as folder:
        for world_size in params.all_world_sizes():
            write_shards(folder / f"world-{world_size}", samples, world_size)


if __name__ == "__main__":
    run_stage(main)
