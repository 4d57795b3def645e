"""The file that was probably meant by a misspelt name."""

import difflib
from collections.abc import Collection
from pathlib import Path


def nearest_file(path: Path, but: Collection[Path] = ()) -> str:
    """Return the end of a line about ``path``: the nearest of its siblings, ``but``
    these; nothing where nothing is near, or ``path`` itself is there.
    """
    try:
        siblings = {one.name for one in path.parent.iterdir()}
    except OSError:
        return ""
    if path.name in siblings:
        return ""
    siblings -= {one.name for one in but if one.parent == path.parent}
    # nearer than by the end of its name alone
    close = difflib.get_close_matches(path.name, siblings, n=1, cutoff=0.8)
    return f" (did you mean {path.with_name(close[0])}?)" if close else ""
