"""Exercises of the course: the change of each, and its promised effects."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mutated import pipeline
from pages import Block, blocks, edit, reruns, values
from project import ROOT, load_yaml
from ruamel.yaml import YAML

COURSE = ROOT / "docs/course"
PAGES = sorted(COURSE.glob("[0-9]*.md"))
# of a run that is not there
MISSING = object()
DIRECTION = re.compile(r"(same|differs|more|less)(?: (?:as|from|than) (\S+))?")
# what `dvc repro` runs, as a promise
RUNS = "runs"
Quantities = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Exercise:
    """One page: its first ``yaml`` or ``diff`` block is the change, the last ``yaml``
    block what is promised.
    """

    path: Path
    text: str
    change: Block
    promises: dict[str, Any]

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def counts(self) -> bool:
        """True if it mentions messages, which take a separate training to count."""
        return any(name.endswith("a step") for name in self.promises)

    def touches(self) -> set[str]:
        """The stages whose own parameters or code it changes."""
        if self.change.language == "yaml":
            keys = list(values(self.change))
        else:
            keys = ["/".join(Path(edit(self.change).file).parts[:2])]
        return {stage for key in keys for stage in reruns()[key]}


def of_runs(folder: Path) -> list[list[str]]:
    """The stages from the text to the verdict, for the world sizes of ``folder``."""
    return pipeline(*load_yaml(folder / "params.yaml")["gloo"]["world_sizes"])


def read(path: Path) -> Exercise:
    text = path.read_text(encoding="utf-8")
    changes = [one for one in blocks(text) if one.language in ("yaml", "diff")]
    promises = YAML(typ="safe").load(changes[-1].text)
    return Exercise(path, text, changes[0], promises)


def broken(
    promises: Mapping[str, Any], before: Quantities, after: Quantities
) -> list[str]:
    """The promises that do not hold, each with what was found.

    A promise is of ``RUN QUANTITY``: ``same``, ``differs``, ``more`` or ``less`` than
    before the change, or ``... as RUN`` after it; else the value itself.
    """
    found = []
    for promise, said in promises.items():
        run, _, quantity = promise.partition(" ")
        now = after.get(run, {}).get(quantity, MISSING)
        direction = DIRECTION.fullmatch(str(said))
        other = None
        if direction:
            word, than = direction.groups()
            there = after if than else before
            other = there.get(than or run, {}).get(quantity, MISSING)
            holds = now is not MISSING and _holds(word, now, other)
        else:
            holds = now == said
        if not holds:
            found.append(f"{promise}: {said}, but {now} ({other})")
    return found


def _holds(word: str, now: Any, other: Any) -> bool:
    if word in ("same", "differs"):
        return other is not MISSING and (now == other) == (word == "same")
    # neither text nor what is undefined is more than anything
    if not all(isinstance(one, int | float) for one in (now, other)):
        return False
    return now > other if word == "more" else now < other
