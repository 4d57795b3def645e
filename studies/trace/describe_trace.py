"""Write a table of the trace, step by step."""

from collections.abc import Iterator
from pathlib import Path

from chrome_trace import Trace, read_trace
from trace_check import TracedStep, steps_in

from minitrain.core.errors import run_stage
from minitrain.core.files import open_atomic, read_json
from minitrain.core.provenance import measured_where
from minitrain.report.numbers import percent

STUDY = Path(__file__).resolve().parent
PHASES = ("data", "forward", "backward", "reduce", "optimizer")
COMMUNICATION = ("comm_total_ms", "comm_hidden_ms", "comm_exposed_ms")
COLUMNS = ("step", "rank", "length", *PHASES, "all-reduce", "hidden", "exposed")


def main() -> None:
    trace = read_trace(STUDY / "trace.json.gz")
    where = measured_where(read_json(STUDY / "machine.json"))
    steps = [step for found in steps_in(trace).values() for step in found.values()]
    steps.sort(key=lambda step: (step.number, step.rank))
    lines = [f"{where} Milliseconds, under the profiler.", ""]
    lines += [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    lines += [row(step) for step in steps]
    with open_atomic(STUDY / "table.md") as file:
        file.write("\n".join([*lines, "", *summary(trace, steps), ""]))


def row(step: TracedStep) -> str:
    found = step.communication()
    times = [step.span["dur"] / 1000, *(step.lasted_ms(name) for name in PHASES)]
    cells = [f"{ms:.1f}" for ms in times]
    # a strategy that does not record buckets, or a GPU
    cells += [f"{found[k]:.1f}" if k in found else "-" for k in COMMUNICATION]
    return f"| {step.number} | {step.rank} | {' | '.join(cells)} |"


def summary(trace: Trace, steps: list[TracedStep]) -> Iterator[str]:
    found = [times for step in steps if (times := step.communication())]
    if found:
        total, hidden, _ = (sum(one[key] for one in found) for key in COMMUNICATION)
        mean = total / len(found)
        yield (
            f"In a step buckets are under way for {mean:.1f} ms (mean), "
            f"{percent(hidden / total)} of that while backward still computes."
        )
    about = trace["otherData"]
    worst = max(about["clock_within_us"].values())
    yield f"All-reduces lie within {worst:.1f} us of where they belong among the ops."
    if left_out := sum(about["ops_left_out"].values()):
        limit = f"{about['shortest_op_us']:g} us"
        yield f"{left_out:,} ops took less than {limit} and are left out."


if __name__ == "__main__":
    run_stage(main)
