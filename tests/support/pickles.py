"""A pickle that runs code when it is read."""

import os
from pathlib import Path
from typing import Any


class RunsCode:
    """It would leave a folder at ``path`` behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)
