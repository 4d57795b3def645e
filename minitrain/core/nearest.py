"""Suggestion of an existing file for a misspelt path."""

import difflib
from collections.abc import Collection
from pathlib import Path


def nearest_file(path: Path, but: Collection[Path] = ()) -> str:
    """Return " (did you mean X?)" with the closest sibling of ``path`` not in ``but``;
    empty if none is close or ``path`` exists.
    """
    try:
        siblings = {one.name for one in path.parent.iterdir()}
    except OSError:
        return ""
    if path.name in siblings:
        return ""
    siblings -= {one.name for one in but if one.parent == path.parent}
    # a high cutoff: a shared suffix alone is not a match
    close = difflib.get_close_matches(path.name, siblings, n=1, cutoff=0.8)
    return f" (did you mean {path.with_name(close[0])}?)" if close else ""
