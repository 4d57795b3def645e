"""Write guarantees, communication and step account of every strategy."""

from pathlib import Path
from typing import Any

from minitrain.analysis.account import PARTS
from minitrain.core.errors import run_stage
from minitrain.core.files import open_atomic, read_json
from minitrain.core.provenance import measured_where
from minitrain.report.facts import shares_of
from minitrain.report.numbers import ms, percent

STUDY = Path(__file__).resolve().parent


def main() -> None:
    measured = read_json(STUDY / "runs.json")
    runs = measured["runs"]
    sizes = [f"{size} processes" for size in next(iter(runs.values()))["verdicts"]]
    heads = ["strategy", *sizes, "torch's collectives", "their bytes", "peak memory"]
    lines = [measured_where(measured), ""]
    lines += [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name, run in runs.items():
        cells = [f"`{name}`", *map(kept, run["verdicts"].values()), *sent(name, run)]
        cells.append(f"{run['peak_memory_mb']:.0f} MB")
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", *(f"- `{name}`: {time_goes(run)}" for name, run in runs.items()), ""]
    with open_atomic(STUDY / "kept.md") as file:
        file.write("\n".join(lines))


def kept(verdicts: dict[str, str]) -> str:
    # The strongest guarantee that was tested and kept, or the breach.
    if breached := [name for name, v in verdicts.items() if v == "breach"]:
        return f"breach: {', '.join(breached)}"
    if verdicts.get("replay") == "equal":
        return "bits of its replay"
    if verdicts.get("one_process") in ("equal", "within tolerance"):
        return "near one process"
    return "loss" if verdicts.get("loss") == "within tolerance" else "nothing"


def sent(name: str, run: dict[str, Any]) -> list[str]:
    counted, expected = run["traffic"]["counted"], run["traffic"]["expected"]
    calls, size = in_words(counted), sum(size for _, size in counted.values())
    if counted == expected:
        return [calls, f"{size:,}"]
    if name == "powersgd":
        # sends from internal threads, which are not counted, so use torch's number
        size = sum(size for _, size in expected.values())
        return [f"not counted ({calls} seen)", f"{size:,} (as torch says)"]
    return [f"breach: {calls}, not {in_words(expected)}", f"{size:,}"]


def in_words(traffic: dict[str, Any]) -> str:
    return " + ".join(f"{n} {name}" for name, (n, _) in traffic.items()) or "none"


def time_goes(run: dict[str, Any]) -> str:
    account = run["account"]
    shares = shares_of(account)
    largest = sorted(shares, key=lambda part: -shares[part])
    where = ", ".join(f"{PARTS[part]} {percent(shares[part])}" for part in largest[:4])
    return f"{ms(account['step_ms'])} a step: {where}."


if __name__ == "__main__":
    run_stage(main)
