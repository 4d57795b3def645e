"""Sections of table.md: all-reduces and coefficients."""

from collections.abc import Iterator
from typing import Any

import pandas as pd

from minitrain.report.numbers import percent

# required accuracy of a link, from this size on
LARGE_BYTES, WITHIN = 1e6, 0.10


def all_reduces(
    reductions: pd.DataFrame, found: dict[str, Any], busy: str | None
) -> Iterator[str]:
    for number, line in enumerate(found["network"]["loopback"]["lines"]):
        begin = f"from {line['from_bytes']:,.0f} bytes on, " if number else ""
        per_message = f"{1e6 * line['alpha']:.0f} µs a message"
        yield f"- loopback: {begin}{per_message}, {1e9 * line['beta']:.2f} ns a byte."
    cables = reductions[reductions["link"] != "loopback"]
    large = cables[cables["num_bytes"] >= LARGE_BYTES]
    if len(large):
        worst = float(large["error"].abs().max())
        verdict = "holds" if worst <= WITHIN else "does not hold"
        verdict = "is not judged" if busy else verdict
        yield (
            f"- Cables: within 10 % for all-reduces of 1 MB and more {verdict}: the "
            f"worst of {len(large)} is {percent(worst)} off."
        )
    yield ""
    yield "| link | processes | bytes | role | predicted | measured | error |"
    yield "|---|---:|---:|---|---:|---:|---:|"
    for row in reductions.to_dict("records"):
        times = [f"{row[f'{k}_us'] / 1e3:.2f} ms" for k in ("predicted", "measured")]
        yield (
            f"| {row['link']} | {row['processes']} | {row['num_bytes']:,} | "
            f"{row['role']} | {' | '.join(times)} | {100 * row['error']:+.0f} % |"
        )


def coefficients(found: dict[str, Any]) -> Iterator[str]:
    yield "Seconds, but for factors; 5-95 % bootstrap intervals over the rounds."
    yield ""
    yield "| coefficient | value | interval |"
    yield "|---|---:|---:|"
    for name, one in found.items():
        interval = f"{one['low']:.3g} to {one['high']:.3g}"
        yield f"| `{name}` | {one['value']:.3g} | {interval} |"
