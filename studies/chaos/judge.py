"""Whether a trial ended as it must, by the bytes of the undisturbed copy, by what the
two runs printed, and how they ended.
"""

import re
from dataclasses import dataclass

# that ranks start again is said without it
OUR_LINE = re.compile(r"^error: ", re.MULTILINE)
RESTART, ON = "restarting", "going on from step"


@dataclass(frozen=True)
class Ran:
    """A run of the pipeline: its exit code (None where it hung), what it printed, and
    the digests of the results then.
    """

    code: int | None
    said: str
    digests: dict[str, str]


def outcome(first: Ran) -> str:
    """In a word, of a trial in which nothing is wrong."""
    if first.code != 0:
        return "repeated"
    return "restarted" if RESTART in first.said else "undisturbed"


def wrong(first: Ran, second: Ran | None, wanted: dict[str, str]) -> list[str]:
    """What must not be, in words; nothing of it where the trial ended as it must."""
    found = []
    for name, run in {"first": first, "second": second}.items():
        if run is None:
            continue
        if run.code is None:
            found.append(f"{name} run hung")
        if "Traceback (most recent call last)" in run.said:
            found.append(f"{name} run printed a traceback")
        if run.code == 0:
            found += [
                f"{name} run: {what}" for what in differences(run.digests, wanted)
            ]
        found += [f"{name} run {what}" for what in wrong_lines(run)]
    if second is not None and second.code not in (0, None):
        found.append(f"second run ended with exit code {second.code}")
    return found


def wrong_lines(run: Ran) -> list[str]:
    """One line where a stage failed, at most one in any case."""
    lines = len(OUR_LINE.findall(run.said))
    if lines > 1:
        return [f"printed {lines} lines of error"]
    # whom kill -9 took says nothing, but DVC does: -9, or 137 where a shell is between
    if lines < 1 and re.search(r"failed to run: .*, exited with (?!137\b)\d", run.said):
        return ["failed without a word"]
    if run.code and run.code > 0 and "error: " not in run.said.lower():
        return ["ended without a word"]
    return []


def differences(found: dict[str, str], wanted: dict[str, str]) -> list[str]:
    """Files that are not as in the undisturbed copy."""
    names = sorted({*found, *wanted})
    return [f"{n} differs" for n in names if found.get(n) != wanted.get(n)][:3]
