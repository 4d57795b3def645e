"""What the model said before and after training: for a terminal, and on the page."""

from collections.abc import Mapping
from typing import Any

from minitrain.report.render import Markdown, table

# columns of a terminal
WIDTH = 80
CUT = "..."

Samples = Mapping[str, Any]


def spoken(samples: Samples) -> list[str]:
    """Lines on the content of samples.json, each at most WIDTH characters: one text of
    the untrained model, two of the first run's, and whether all runs say the same.
    """
    if samples["mute"] is not None:
        return [fitted(mute_sentence(samples))]
    runs = [*samples["after"]]
    lines = ["The model speaks, with the same dice before and after training:"]
    lines += [f"  before  {text}" for text in samples["before"][:1]]
    lines += [f"  after   {text}" for text in samples["after"][runs[0]][:2]]
    if len(runs) > 1:
        lines.append(f"  {alike(samples)}")
    return [fitted(line) for line in lines]


def fitted(line: str) -> str:
    """``line`` without its end where it is longer than WIDTH."""
    return line if len(line) <= WIDTH else line[: WIDTH - len(CUT)] + CUT


def spoken_sentences(samples: Samples) -> str:
    """What the table of :func:`spoken_table` shows, or why there is none."""
    if samples["mute"] is not None:
        return mute_sentence(samples)
    dice = "with the same dice before training and after it"
    lead = f"The table is what the model writes by itself, byte by byte, {dice}; "
    told = "a byte that is no text is a \N{REPLACEMENT CHARACTER}."
    several = f" {alike(samples)}" if len(samples["after"]) > 1 else ""
    return f"{lead}{told}{several}"


def spoken_table(samples: Samples) -> Markdown | None:
    """All texts, those of the runs once where they are the same; None of a mute one."""
    if samples["mute"] is not None:
        return None
    after = samples["after"]
    if samples["same_texts"]:
        after = {together([*after]): next(iter(after.values()))}
    said = {"before": samples["before"]}
    said |= {f"after, {runs}": texts for runs, texts in after.items()}
    rows = [
        (when, text if text.strip() else "(nothing)")
        for when, texts in said.items()
        for text in texts
    ]
    return table(["training", "the model writes"], rows)


def mute_sentence(samples: Samples) -> str:
    """Why the model says nothing."""
    return f"The model cannot be sampled: {samples['mute']}."


def alike(samples: Samples) -> str:
    """Whether the runs, of which there are several, say the same."""
    same = "say the same, letter by letter."
    other = "do not all say the same: they differ by rounding, or more."
    return f"{together([*samples['after']])} {same if samples['same_texts'] else other}"


def together(runs: list[str]) -> str:
    """``gloo-1``, ``gloo-1 and gloo-2``, ``gloo-1, gloo-2 and gloo-4``."""
    *others, last = runs
    return f"{', '.join(others)} and {last}" if others else last
