"""Stages in forks for an unchanged DVC: seconds in place of a minute.

    python quick_dvc.py ADDRESS -m stages.NAME ...

replaces ``stages/python`` in a copy of the project.
"""

import sys
from pathlib import Path
from shlex import quote

from mutated import run_stages


def stages_in_forks(folder: Path, address: str) -> None:
    """Let the server of mutated.py at ``address`` run the stages that DVC starts in the
    copy of the project in ``folder``.
    """
    command = " ".join(map(quote, (sys.executable, __file__, address)))
    (folder / "stages/python").write_text(f'#!/bin/sh\nexec {command} "$@"\n')


def main() -> None:
    address, _, module, *arguments = sys.argv[1:]
    stage = [module.removeprefix("stages."), *arguments]
    outcome = run_stages(address, Path.cwd(), [stage])
    print(outcome.output, end="", flush=True)
    sys.exit(outcome.code)


if __name__ == "__main__":
    main()
