"""Pickle that runs code when it is loaded."""

import os
from pathlib import Path
from typing import Any


class RunsCode:
    """Creates a folder at ``path`` when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)
