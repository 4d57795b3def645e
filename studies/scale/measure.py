"""Build, shard and train on corpora of growing size; record seconds and memory.

Runs the stages of the root pipeline in a temporary project.
"""

import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

from ruamel.yaml import YAML
from scale_settings import Scale
from study_settings import load_study

from minitrain.core.errors import UserError, run_stage
from minitrain.core.files import write_json
from minitrain.core.params import load_params
from minitrain.core.provenance import provenance

SCRIPT = Path(__file__).resolve()
STUDY, ROOT = SCRIPT.parent, SCRIPT.parents[2]


def main() -> None:
    study = load_study(STUDY, Scale)
    load_params(ROOT / "params.yaml")
    with tempfile.TemporaryDirectory() as temporary:
        folders = {n: Path(temporary, str(n)) for n in study.num_sentences}
        results: dict[int, Any] = {n: build(f, n) for n, f in folders.items()}
        # interleave sizes, since the allocator makes repeated runs differ
        memory: dict[int, list[float]] = {count: [] for count in folders}
        for _ in range(study.num_repeats):
            for count, folder in folders.items():
                memory[count].append(training_memory_mb(folder))
    for count, values in memory.items():
        spread = {"p50": statistics.median(values), "min": min(values)}
        for name, value in {**spread, "max": max(values)}.items():
            results[count][f"train_rss_anon_{name}_mb"] = round(value, 1)
    named: Any = {f"{count}_sentences": result for count, result in results.items()}
    medians = [result["train_rss_anon_p50_mb"] for result in results.values()]
    named["train_rss_anon_growth_mb"] = round(medians[-1] - medians[0], 1)
    write_json(STUDY / "scale.json", {**named, **provenance(SCRIPT)})


def build(folder: Path, count: int) -> dict[str, float]:
    # a temporary project with all inputs of the stages
    for name in ("data/verbs.csv", "minitrain/model/gpt.py", "params.yaml"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    params = YAML().load((folder / "params.yaml").read_text())
    params["corpus"]["num_sentences"] = count
    params["gloo"]["world_sizes"] = [1, 2]
    YAML().dump(params, folder / "params.yaml")
    result = {"build_and_shard_s": 0.0}
    for stage in ("check", "corpus", "shard"):
        *_, imports_mb = run(folder, "-c", f"import stages.{stage}")
        _, seconds, peak_mb = run(folder, "-m", f"stages.{stage}")
        result["build_and_shard_s"] += round(seconds, 2)
        result[f"{stage}_s"] = round(seconds, 2)
        result[f"{stage}_above_imports_mb"] = round(peak_mb - imports_mb, 1)
    return result


def training_memory_mb(folder: Path) -> float:
    printed, *_ = run(folder, str(STUDY / "train_memory.py"))
    return int(printed) * 1024 / 1e6


def run(folder: Path, *arguments: str) -> tuple[bytes, float, float]:
    # -P: the copied minitrain/ must not shadow the real one
    command = [sys.executable, "-P", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    start = time.monotonic()
    process: Any = Popen(command, cwd=folder, env=environment, stdout=PIPE)
    printed = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        # it has printed the reason
        raise UserError(f"python {' '.join(arguments)}: failed")
    return printed, time.monotonic() - start, usage.ru_maxrss * 1024 / 1e6


if __name__ == "__main__":
    run_stage(main)
