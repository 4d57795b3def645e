"""Commands of minitrain, run in this process."""

from contextlib import redirect_stdout
from io import StringIO

from minitrain.cli.main import run


def output_of(*words: object) -> tuple[int, str]:
    """Return the exit code of ``minitrain WORDS`` and what it prints."""
    with redirect_stdout(StringIO()) as out:
        code = run([*map(str, words)])
    return code, out.getvalue()
