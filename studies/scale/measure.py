"""Build, shard and train on corpora of growing size; record seconds and memory.

    python studies/scale/measure.py

Runs the stages of the root pipeline as they are, in a temporary folder with a
params.yaml of its own, and asks the operating system what each took.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

STUDY = Path(__file__).resolve().parent
ROOT = STUDY.parent.parent
STAGES = ("check", "corpus", "shard")

TRAIN = """
import torch
from pathlib import Path
from minitrain.ddp import distributed
from minitrain.params import load_params
from minitrain.run import rank_batches, start_model
from minitrain.sync.stock import StockDDP
from minitrain.clock import StepClock
from minitrain.hashes import Recorder
from minitrain.training import make_optimizer, train

params = load_params(Path("params.yaml"))
torch.set_num_threads(params.train.threads_per_process)
with distributed():
    model = start_model(params, 0)
    batches = rank_batches(params, Path("data/shards/world-1"), 0, 1)
    optimizer = make_optimizer(model, params.train)
    sync = StockDDP(model, timed=True)
    train(model, sync, batches, optimizer, range(10), Recorder(model, ()), StepClock())
status = Path("/proc/self/status").read_text().splitlines()
print(next(line for line in status if line.startswith("RssAnon")).split()[1])
"""


def main() -> None:
    yaml = YAML(typ="safe")
    study = yaml.load((STUDY / "params.yaml").read_text())["scale"]
    with tempfile.TemporaryDirectory() as temporary:
        folders = {n: Path(temporary, str(n)) for n in study["num_sentences"]}
        results = {n: build(folder, n) for n, folder in folders.items()}
        # The allocator alone makes runs of one size differ: sizes take turns.
        anonymous: dict[int, list[float]] = {count: [] for count in folders}
        for _ in range(study["num_repeats"]):
            for count, folder in folders.items():
                anonymous[count].append(anonymous_memory_mb(folder))
    for count, values in anonymous.items():
        results[count]["train_rss_anon_p50_mb"] = round(statistics.median(values), 1)
        results[count]["train_rss_anon_min_mb"] = round(min(values), 1)
        results[count]["train_rss_anon_max_mb"] = round(max(values), 1)
    medians = [result["train_rss_anon_p50_mb"] for result in results.values()]
    named: dict[str, Any] = {f"{n}_sentences": r for n, r in results.items()}
    named["train_rss_anon_growth_mb"] = round(medians[-1] - medians[0], 1)
    (STUDY / "scale.json").write_text(json.dumps(named, indent=2) + "\n")


def build(folder: Path, count: int) -> dict[str, float]:
    """Seconds and memory of every stage that a corpus of ``count`` passes."""
    prepare(folder, count)
    result, total = {}, 0.0
    for stage in STAGES:
        _, imports_mb = run(folder, "-c", f"import stages.{stage}")
        seconds, peak_mb = run(folder, "-m", f"stages.{stage}")
        total += seconds
        result[f"{stage}_s"] = round(seconds, 2)
        result[f"{stage}_above_imports_mb"] = round(peak_mb - imports_mb, 1)
    return {**result, "build_and_shard_s": round(total, 2)}


def anonymous_memory_mb(folder: Path) -> float:
    """Memory of a training process that no file backs, after a few steps."""
    command = [sys.executable, "-c", TRAIN]
    done = subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, check=True
    )
    return int(done.stdout) * 1024 / 1e6


def prepare(folder: Path, count: int) -> None:
    (folder / "data").mkdir(parents=True)
    shutil.copy(ROOT / "data/verbs.csv", folder / "data")
    (folder / "minitrain").mkdir()
    shutil.copy(ROOT / "minitrain/model.py", folder / "minitrain")
    yaml = YAML()
    params: Any = yaml.load((ROOT / "params.yaml").read_text())
    params["corpus"]["num_sentences"] = count
    params["gloo"]["world_sizes"] = [1, 2]
    with open(folder / "params.yaml", "w") as file:
        yaml.dump(params, file)


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def run(folder: Path, *arguments: str) -> tuple[float, float]:
    """Run Python with ``arguments`` -> seconds, peak resident memory in MB."""
    start = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-P", *arguments],
        cwd=folder,
        env=environment(),
        stdout=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"error: {' '.join(arguments)} failed")
    return time.monotonic() - start, usage.ru_maxrss * 1024 / 1e6


if __name__ == "__main__":
    main()
