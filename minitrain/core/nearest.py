"""The file that was probably meant by a misspelt name."""

import difflib
from collections.abc import Collection
from pathlib import Path


def nearest_file(path: Path, but: Collection[Path] = ()) -> str:
    """The end of a line about ``path``: the nearest of what lies beside it, ``but``
    these; nothing where nothing is near, or ``path`` itself is there.
    """
    try:
        beside = {one.name for one in path.parent.iterdir()}
    except OSError:
        return ""
    if path.name in beside:
        return ""
    beside -= {one.name for one in but if one.parent == path.parent}
    # nearer than by the end of its name alone
    close = difflib.get_close_matches(path.name, beside, n=1, cutoff=0.8)
    # letters that changed places leave little of a short name alike
    close = close or [n for n in sorted(beside) if sorted(n) == sorted(path.name)]
    return f" (did you mean {path.with_name(close[0])}?)" if close else ""
