"""Write the table of each link: speed, all-reduce, and bit equality."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from arms import ARMS, ONE_HOST, Arm
from speeds import Speeds, read, stock_like

from minitrain.analysis.busy import why_busy
from minitrain.core.errors import run_stage
from minitrain.core.files import open_atomic, read_json
from minitrain.core.provenance import measured_where
from minitrain.report.numbers import ms, percent

STUDY = Path(__file__).resolve().parent
# rungs shown: the bit-exact replay, and the independent witness
RUNGS = ("replay", "witness_gradients")


def main() -> None:
    speeds, bits = read(), read_json(STUDY / "bits.json", "arms")["arms"]
    origin = read_json(STUDY / "machine.json", "machine")
    with open_atomic(STUDY / "table.md") as file:
        file.writelines(f"{line}\n" for line in page(speeds, bits, origin))


def page(speeds: Speeds, bits: dict[str, Any], origin: Any) -> Iterator[str]:
    rounds = f"Medians of {speeds.num_rounds} rounds, with least and most."
    yield f"{measured_where(origin)} {rounds}"
    busy = why_busy(origin["load"], speeds.spread())
    yield ""
    if busy:
        yield f"No speed is judged, since the machine was busy ({busy})."
    else:
        yield (
            f"Two arms that are the same were up to {percent(speeds.noise_floor())} "
            "apart. What is not further from stock DDP in the median, or on both sides "
            "of it, is no difference."
        )
    for link in (ONE_HOST, *speeds.links):
        yield from ("", f"## {link}", "")
        yield "| arm | ranks | tokens/s | times stock DDP | step | all-reduce |"
        yield "|---|---:|---:|---:|---:|---:|"
        for arm in ARMS:
            if arm.goes_over(link):
                yield f"| {' | '.join(cells(speeds, arm, link, busy))} |"
    yield from ("", "## Bits, over every link", "")
    yield "| arm | verdict | replay | gradients, by the witness | rounds | one host |"
    yield "|---|---|---|---|---|---|"
    for arm in ARMS:
        yield f"| {' | '.join(kept(arm, bits[arm.name]))} |"


def cells(speeds: Speeds, arm: Arm, link: str, busy: str | None) -> list[str]:
    return [
        arm.name,
        str(arm.world_size),
        f"{speeds.median(arm, link):,.0f}",
        against_stock(speeds, arm, link, busy),
        ms(speeds.median(arm, link, "step_mean_ms")),
        ms(speeds.median(arm, link, "allreduce_p50_ms")),
    ]


def against_stock(speeds: Speeds, arm: Arm, link: str, busy: str | None) -> str:
    stock = stock_like(arm)
    if stock is None:
        return ""
    ratio = speeds.ratio(arm, stock, link)
    if busy:
        return f"{ratio}, not judged"
    differs = ratio.differs(speeds.noise_floor())
    return str(ratio) if differs else f"{ratio}, no difference seen"


def kept(arm: Arm, found: dict[str, Any]) -> list[str]:
    rungs = found["rungs"]
    # all links have equal bits, or else the study would have failed
    alone = "equal" if found["same_on_one_host"] else "other bits"
    own = (rungs[name] for name in RUNGS)
    return [arm.name, found["verdict"], *own, "equal", alone]


if __name__ == "__main__":
    run_stage(main)
