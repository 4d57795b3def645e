"""What the model said before and after training, in a few lines."""

from collections.abc import Mapping
from typing import Any

# columns of a terminal
WIDTH = 80
CUT = "..."


def spoken(samples: Mapping[str, Any]) -> list[str]:
    """Lines on the content of samples.json, each at most WIDTH characters: one text of
    the untrained model, two of the first run's, and whether all runs say the same.
    """
    if samples["mute"] is not None:
        return [fitted(f"The model cannot be sampled: {samples['mute']}.")]
    runs = [*samples["after"]]
    lines = ["The model speaks, with the same dice before and after training:"]
    lines += [f"  before  {text}" for text in samples["before"][:1]]
    lines += [f"  after   {text}" for text in samples["after"][runs[0]][:2]]
    if len(runs) > 1:
        named = f"{', '.join(runs[:-1])} and {runs[-1]}"
        same = "say the same, letter by letter."
        other = "do not all say the same: they differ by rounding, or more."
        lines.append(f"  {named} {same if samples['same_texts'] else other}")
    return [fitted(line) for line in lines]


def fitted(line: str) -> str:
    """``line`` without its end where it is longer than WIDTH."""
    return line if len(line) <= WIDTH else line[: WIDTH - len(CUT)] + CUT
