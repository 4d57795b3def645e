"""Draw the model's predictions for thousands of ranks, with all assumptions.

The only measured input is the overhead of a cable: bytes on the wire per byte of
payload.
"""

from functools import partial
from pathlib import Path

from assumed import assumptions
from at_scale import Workload, efficiencies, world_sizes
from end_labels import label_ends
from link_model import Link, network_of
from prediction_settings import Prediction, Scale, Wire
from rows import STUDY
from study_settings import load_study

from minitrain.core.errors import run_stage
from minitrain.core.files import atomic_path, read_json
from minitrain.report import canvas

COLORS = (canvas.ORANGE, canvas.PURPLE, canvas.GREEN, canvas.BLUE, canvas.BLACK)
# all-reduce algorithms, and their styles
WAYS = {"one flat ring": (False, "--"), "hierarchical": (True, "-")}


def main() -> None:
    scale = load_study(STUDY, Prediction).scale
    cable = network_of(read_json(STUDY / "fit.json")["network"]).cable
    with atomic_path(STUDY / "scale.png") as path:
        draw(scale, cable.overhead if cable else 1.0, path)


def link(wire: Wire, overhead: float = 1.0) -> Link:
    return Link.of(1e-6 * wire.alpha_us, 8e-9 * overhead / wire.gbit_per_s)


def draw(scale: Scale, overhead: float, path: Path) -> None:
    shape = scale.n_layer, scale.n_embd, scale.block_size, scale.vocab_size
    work = Workload(
        *shape, scale.samples, 1e12 * scale.tflop_per_s, scale.bucket_cap_mb
    )
    ranks = world_sizes(scale.smallest_ranks, scale.largest_ranks)
    kept = partial(efficiencies, work, ranks, scale.ranks_per_host, link(scale.inside))
    found = {
        (name, way): kept(link(wire, overhead), hierarchical)
        for name, wire in scale.networks.items()
        for way, (hierarchical, _) in WAYS.items()
    }
    fastest = max(scale.networks, key=lambda name: scale.networks[name].gbit_per_s)
    flat, tree = (100 * found[fastest, way][-1] for way in WAYS)
    title = (
        f"Predicted, not measured: on {fastest}, {ranks[-1]} ranks keep {flat:.0f} % "
        f"of their speed in one flat ring, {tree:.0f} % in a hierarchy"
    )
    figure, axes = canvas.canvas(5.2, title, right=0.73, head=0.35)
    ends: dict[str, tuple[float, str]] = {}
    for name, color in zip(scale.networks, COLORS, strict=False):
        for way, (_, style) in WAYS.items():
            y = [100 * one for one in found[name, way]]
            axes.plot(ranks, y, style, color=color)
            mark = "" if way == "hierarchical" else ", flat ring"
            ends[f"{name}{mark}"] = y[-1], color
    axes.set_xscale("log", base=2)
    axes.set_xticks(ranks, [str(count) for count in ranks])
    axes.set(ylim=(0, 103), xlim=(ranks[0], ranks[-1]))
    axes.set(xlabel="ranks", ylabel="speed kept, %")
    # between the last number of ranks that fit on a host and the first on two
    inside = [count for count in ranks if count <= scale.ranks_per_host]
    axes.axvspan(ranks[0], 2**0.5 * inside[-1], color="#eeeeee", zorder=0)
    axes.text(ranks[0] * 1.05, 2, "one host", fontsize=8, rotation=90, va="bottom")
    label_ends(axes, ends, 0.055)
    said = "solid: sums inside each host first; dashed: one flat ring over all ranks"
    axes.set_title(said, loc="left", size=9)
    figure.subplots_adjust(bottom=0.25)
    note = assumptions(scale, overhead)
    figure.text(0.02, 0.015, note, fontsize=8, color=canvas.GRAY)
    canvas.save(figure, path)


if __name__ == "__main__":
    run_stage(main)
