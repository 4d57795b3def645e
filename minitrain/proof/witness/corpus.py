"""Samples of each batch and rank, determined from the corpus itself.

A sample is a boundary byte, its text in UTF-8, and a boundary byte; if it is longer
than ``block_size``, it is split or cut off. Its name identifies it by content: the
start of the SHA-256 of the row of ids and the row of labels that the model receives.
"""

import hashlib
import importlib
import importlib.util
import itertools
import json
import math
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from minitrain.proof.witness.passes import seed_everything
from minitrain.proof.witness.record import (
    Record,
    RungDict,
    Task,
    data_rung,
    fed_names,
    fed_targets,
    rung,
)

BOUNDARY, PADDING, VOCABULARY = b"\xff", -100, 256
# fewer bits of chance, and two epochs may have the same order by accident
BITS_OF_CHANCE = 40
Batch = dict[str, Tensor]


class Corpus:
    """The samples of a corpus.jsonl, split or cut off as set in params.yaml: their
    ``names`` (hashes) in its order, and their bytes by name.
    """

    def __init__(self, corpus: Path, params: Path) -> None:
        # of the extra `lab`; a check of one's own model has no corpus
        from ruamel.yaml import YAML

        self.path, self.params = corpus, YAML(typ="safe").load(params)
        self.block = self.params["model"]["block_size"]
        samples = [*self._read()]
        # samples with equal content share a name, and are interchangeable
        self.names = [self.name(sample) for sample in samples]
        self.samples = dict(zip(self.names, samples, strict=True))
        # of lengths and tokens, as in the index of the shards
        lengths = np.array([len(sample) for sample in samples], np.int64)
        digest = hashlib.sha256(lengths.tobytes() + b"".join(samples))
        self.digest = int(digest.hexdigest()[:16], 16)

    def _read(self) -> Iterator[bytes]:
        split = self.params["shard"]["long_samples"] == "split"
        with open(self.path, encoding="utf-8") as lines:
            for line in filter(str.strip, lines):
                rest = BOUNDARY + json.loads(line)["text"].encode() + BOUNDARY
                yield rest[: self.block]
                while split and len(rest) > self.block:
                    # consecutive chunks share one token
                    rest = rest[self.block - 1 :]
                    yield rest[: self.block]

    def name(self, sample: bytes) -> str:
        """Return a sample's name: the start of the SHA-256 of its ids and labels."""
        tokens = np.frombuffer(sample, np.uint8)
        rows = np.zeros((2, self.block), np.int64)
        rows[1] = PADDING
        rows[:, : len(tokens)] = tokens
        return hashlib.sha256(rows.tobytes()).hexdigest()[:16]

    def batches(self, record: Record) -> dict[int, Batch]:
        """Return the batches of the sampled steps and of the probe (a step repeated in
        eval mode), by step, rebuilt from the names of the samples in ``record``: ids
        (B, block) padded with 0, labels with -100.
        """
        probed = [row["step"] for row in record.kind("probe")]
        fed: dict[int, list[str]] = {step: [] for step in (*record.steps(), *probed)}
        for row in record.kind("fed"):
            if row["step"] in fed:
                fed[row["step"]] += fed_names(row)
        return {step: self._batch(names) for step, names in fed.items()}

    def _batch(self, names: list[str]) -> Batch:
        ids = torch.zeros(len(names), self.block, dtype=torch.int64)
        labels = torch.full_like(ids, PADDING)
        for row, name in enumerate(names):
            tokens = torch.tensor(list(self.samples[name]))
            ids[row, : len(tokens)] = labels[row, : len(tokens)] = tokens
        return {"input_ids": ids, "labels": labels}

    def task(
        self, world_size: int, wire: torch.dtype | None, section: Any = None
    ) -> Task:
        """Return a run's settings. ``wire`` is the dtype in which gradients are sent,
        if coarser than theirs; ``section`` what the factory gets (None: ``model``).
        """
        train, model = self.params["train"], self.params["model"]
        count, size = len(self.names), train["global_batch_size"]
        per_epoch = -(-count // size)

        def build_as_run() -> nn.Module:
            # values outside the state come from the run's seed
            seed_everything(train["seed"])
            return build(model, section or SimpleNamespace(**model))

        return Task(
            build=build_as_run,
            loss=lambda net, batch: net(**batch).loss,
            count=lambda batch: int((batch["labels"][:, 1:] != PADDING).sum()),
            world_size=world_size,
            num_steps=train["num_steps"] or train["num_epochs"] * per_epoch,
            hash_every=train["hash_every"],
            optimizer=train["optimizer"],
            learning_rate=train["learning_rate"],
            precision=train["precision"],
            wire=wire,
            smaller=count // size if count > size and count % size else None,
            digest=self.digest,
        )

    def data_rung(self, task: Task, record: Record) -> RungDict:
        """Return the rung that checks samples: each once per epoch, sample i on rank
        i % W, batches of the right size and number of targets, a new order per epoch.
        """
        count, size = len(self.names), self.params["train"]["global_batch_size"]
        per_epoch = -(-count // size)
        # per rank, the samples of its shard that were not read yet
        left: list[Counter[str]] = []
        epochs: list[list[str]] = []

        def wrong_at(step: int, rows: Sequence[Mapping[str, Any]]) -> str:
            if step % per_epoch == 0:
                ranks = range(task.world_size)
                left[:] = [Counter(self.names[r :: task.world_size]) for r in ranks]
                epochs.append([])
            everyone = sorted(name for row in rows for name in fed_names(row))
            epochs[-1].append(" ".join(everyone))
            for row in rows:
                if wrong := self._rank_is_wrong(row, left[row["rank"]]):
                    return wrong
            last = step % per_epoch == per_epoch - 1
            if len(everyone) != ((count - 1) % size + 1 if last else size):
                return f"a batch of {len(everyone)} samples"
            missing = last and any(shard.total() for shard in left)
            return "samples are missing in this epoch" if missing else ""

        found = data_rung(task, record, wrong_at)
        if found["verdict"] == "passed" and self._comes_again(epochs, size):
            return rung("breach", "an epoch repeats the order of an earlier one")
        return found

    def _comes_again(self, epochs: list[list[str]], size: int) -> bool:
        if 2 * len(self.samples) < len(self.names):
            # with many duplicates, different orders look the same
            return False
        for one, other in itertools.combinations(epochs, 2):
            if one[: len(other)] == other:
                # each column of a batch is shuffled independently
                orders = math.log2(math.perm(len(one), len(other)))
                if orders * min(size, len(self.names)) >= BITS_OF_CHANCE:
                    return True
        return False

    def _rank_is_wrong(self, row: Mapping[str, Any], left: Counter[str]) -> str:
        rank, names = f"rank {row['rank']}", fed_names(row)
        if not self.samples.keys() >= {*names}:
            return f"{rank} computed a sample that is not in the corpus"
        left.subtract(names)
        if any(left[name] < 0 for name in names):
            return f"{rank} read a sample twice, or one of another rank"
        if sum(len(self.samples[name]) - 1 for name in names) != fed_targets(row):
            return f"{rank} counts {fed_targets(row)} targets"
        return ""


def build(model: Mapping[str, Any], section: Any) -> nn.Module:
    """Return the model that ``model.factory`` in a file or module makes of ``section``.
    The witness has its own import code, to share no errors with minitrain.
    """
    place, _, name = model["factory"].rpartition(":")
    if place:
        return getattr(importlib.import_module(place), name)(section, VOCABULARY)
    spec = importlib.util.spec_from_file_location("witnessed", model["file"])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # dataclasses look up their module by name
    sys.modules[spec.name] = module
    folder = str(Path(model["file"]).resolve().parent)

    def find_spec(name: str, path: Any, target: Any = None) -> Any:
        found = None if path else PathFinder.find_spec(name, [folder])
        # a namespace folder must not hide an installed package of the same name
        return found if found and found.loader else None

    # the file may import modules from its own folder
    finder: Any = SimpleNamespace(find_spec=find_spec)
    sys.meta_path.insert(0, finder)
    try:
        spec.loader.exec_module(module)
        return getattr(module, name)(section, VOCABULARY)
    finally:
        sys.meta_path.remove(finder)
