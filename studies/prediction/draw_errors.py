"""Draw measured against predicted steps, fitted and held out."""

from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator
from rows import STUDY
from sections import busy_meanwhile, errors_of, title

from minitrain.core.errors import run_stage
from minitrain.core.files import atomic_path, read_csv, read_json
from minitrain.report.canvas import BLACK, BLUE, GRAY, GREEN, ORANGE, canvas, save

# color and marker for each kind of held-out setting
LOOKS = {
    "loopback": (BLUE, "o"),
    "more processes than cores": (ORANGE, "s"),
    "cable": (GREEN, "D"),
}
# errors beyond this share are named
BAND = 0.2


def main() -> None:
    table = read_csv(STUDY / "predictions.csv", "role")
    origin = read_json(STUDY / "machine.json")
    cores = origin["machine"]["cores"]
    table["kind"] = [kind(row, cores) for row in table.to_dict("records")]
    found = errors_of(table[table["role"] != "fit"])
    with atomic_path(STUDY / "prediction.png") as path:
        draw(table, title(found, busy_meanwhile(origin)), path)


def kind(row: dict[Any, Any], cores: int) -> str:
    if row["sync"] != "none" and row["link"] != "loopback":
        return "cable"
    return "loopback" if row["processes"] <= cores else "more processes than cores"


def draw(table: pd.DataFrame, said: str, path: Path) -> None:
    held_out = table[table["role"] != "fit"]
    figure, axes = canvas(4.6, said, right=0.97, head=0.15)
    ends = [table["measured_ms"].min() / 1.2, table["measured_ms"].max() * 1.2]
    axes.plot(ends, ends, color=BLACK, linewidth=0.8)
    low, high = ([end * (1 + off) for end in ends] for off in (-BAND, BAND))
    label = f"within {100 * BAND:.0f} %"
    axes.fill_between(ends, low, high, color="#e4e4e4", linewidth=0, label=label)
    fitted = table[table["role"] == "fit"]
    x, y = fitted["measured_ms"], fitted["predicted_ms"]
    axes.plot(x, y, "x", color=GRAY, label=f"fitted ({len(fitted)})")
    for name, (color, shape) in LOOKS.items():
        rows = held_out[held_out["kind"] == name]
        if len(rows):
            label = f"held out, {name} ({len(rows)})"
            x, y = rows["measured_ms"], rows["predicted_ms"]
            axes.plot(x, y, shape, color=color, label=label, markersize=5)
    away = (held_out["predicted_ms"] / held_out["measured_ms"] - 1).abs()
    for row in held_out[away > BAND].to_dict("records"):
        name_outlier(axes, row)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter("")
    axes.set_xlabel("measured milliseconds a step (median of the rounds)")
    axes.set_ylabel("predicted milliseconds a step")
    axes.legend(loc="upper left", frameon=False, fontsize=9)
    save(figure, path)


def name_outlier(axes: Axes, row: dict[Any, Any]) -> None:
    measured, predicted = row["measured_ms"], row["predicted_ms"]
    said = f"{row['sync']}, {row['processes']} processes, {row['link']}:\n"
    said += f"{measured:.0f} ms measured, {predicted:.0f} ms predicted"
    axes.annotate(
        said,
        xy=(measured, predicted),
        xytext=(5, -95) if predicted > measured else (-150, 60),
        textcoords="offset points",
        fontsize=8,
        arrowprops={"arrowstyle": "-", "color": GRAY},
    )


if __name__ == "__main__":
    run_stage(main)
