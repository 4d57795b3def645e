"""docs/what-reruns.md, which tests/project/test_pipeline.py compares with dvc.yaml."""

import re
from functools import cache

from project import ROOT


@cache
def table() -> dict[str, list[str]]:
    """A parameter, file or package -> the stages that it touches directly."""
    text = (ROOT / "docs/what-reruns.md").read_text()
    rows = re.findall(r"^\| `([^`]+)` \| ([^|]*) \|$", text, flags=re.MULTILINE)
    return {key: re.findall(r"\w+", stages) for key, stages in rows}
