"""Markdown pages: fenced blocks, and the changes that they ask for."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from project import ROOT, set_params
from ruamel.yaml import YAML

FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def pages_of(*rooms: str) -> list[str]:
    """All pages in these folders of the project, by their paths."""
    found = [path for room in rooms for path in sorted((ROOT / room).rglob("*.md"))]
    return [path.relative_to(ROOT).as_posix() for path in found]


@dataclass(frozen=True)
class Block:
    """A fenced block: ``sh``, ``yaml``, ``diff``, ``python``, ..."""

    language: str
    text: str

    @property
    def commands(self) -> list[str]:
        """The lines of a shell, without comments; one that goes on is one."""
        whole = self.text.replace("\\\n", " ")
        lines = [re.sub(r"(^|\s+)#.*", "", line) for line in whole.splitlines()]
        return [" ".join(line.split()) for line in lines if line.strip()]

    @property
    def typed(self) -> list[str]:
        """Commands of a ``sh`` block, or those shown with their output."""
        shown = re.findall(r"^\$ (.+)$", self.text, re.MULTILINE)
        return self.commands if self.language == "sh" else shown


def blocks(text: str) -> list[Block]:
    return [Block(*found) for found in FENCED.findall(text)]


def without_fences(text: str) -> str:
    return FENCED.sub("", text)


def values(block: Block) -> dict[str, Any]:
    """The dotted keys of params.yaml that a ``yaml`` block sets."""
    return dict(_dotted(YAML(typ="safe").load(block.text)))


def _dotted(sections: dict[str, dict[str, Any]]) -> Iterator[tuple[str, Any]]:
    for section, keys in sections.items():
        for key, value in keys.items():
            yield f"{section}.{key}", value


@cache
def reruns() -> dict[str, list[str]]:
    """docs/what-reruns.md: a parameter, file or package -> the stages that it touches
    directly; tests/project/test_pipeline.py compares it with dvc.yaml.
    """
    text = (ROOT / "docs/what-reruns.md").read_text()
    rows = re.findall(r"^\| (`[^|]+`) \| ([^|]*) \|$", text, flags=re.MULTILINE)
    return {
        key: re.findall(r"\w+", stages)
        for keys, stages in rows
        for key in re.findall(r"`([^`]+)`", keys)
    }


@dataclass(frozen=True)
class Edit:
    """``old`` stands in ``file`` exactly once, and becomes ``new``."""

    file: str
    old: str
    new: str

    def make(self, folder: Path) -> None:
        path = folder / self.file
        text = path.read_text()
        assert text.count(self.old) == 1, self
        path.write_text(text.replace(self.old, self.new))


def edit(block: Block) -> Edit:
    head, *lines = block.text.splitlines(keepends=True)
    old = "".join(line[1:] for line in lines if line[0] != "+")
    new = "".join(line[1:] for line in lines if line[0] != "-")
    return Edit(head.removeprefix("--- ").strip(), old, new)


def change(block: Block, folder: Path) -> None:
    if block.language == "yaml":
        set_params(folder, values(block))
    else:
        edit(block).make(folder)
