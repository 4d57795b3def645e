"""Verdict on a trial from its result files, output and exit codes."""

import re
from dataclasses import dataclass

# restarts of ranks are reported without this prefix
OUR_LINE = re.compile(r"^error: ", re.MULTILINE)
RESTART, ON = "restarting", "going on from step"


@dataclass(frozen=True)
class Ran:
    """Finished run of the pipeline: exit code (None if it hung), output, and digests of
    its results.
    """

    code: int | None
    said: str
    digests: dict[str, str]


def outcome(first: Ran, by_hand: bool = False) -> str:
    """Return the outcome of a trial without errors, in one word; ``by_hand`` if the
    second run needed a command of docs/troubleshooting.md.
    """
    if by_hand:
        return "repaired"
    if first.code != 0:
        return "repeated"
    return "restarted" if RESTART in first.said else "undisturbed"


def wrong(first: Ran, second: Ran | None, wanted: dict[str, str]) -> list[str]:
    """Return everything that is wrong with a trial, as phrases."""
    found = []
    for name, run in {"first": first, "second": second}.items():
        if run is None:
            continue
        if run.code is None:
            found.append(f"{name} run hung")
        if run.code == 0:
            found += [
                f"{name} run: {what}" for what in differences(run.digests, wanted)
            ]
        found += wrong_words(name, run)
    if second is not None and second.code not in (0, None):
        found.append(f"second run ended with exit code {second.code}")
    return found


def wrong_words(name: str, run: Ran) -> list[str]:
    """Check that a failed run printed one line of error, and no run a traceback."""
    found = [f"{name} run {what}" for what in wrong_lines(run)]
    if "Traceback (most recent call last)" in run.said:
        found.append(f"{name} run printed a traceback")
    return found


def wrong_lines(run: Ran) -> list[str]:
    """Check that a failed stage printed exactly one line of error."""
    lines = len(OUR_LINE.findall(run.said))
    if lines > 1:
        return [f"printed {lines} lines of error"]
    # a stage that kill -9 ended prints nothing, but DVC reports -9, or 137 through a
    # shell
    if lines < 1 and re.search(r"failed to run: .*, exited with (?!137\b)\d", run.said):
        return ["failed without a word"]
    # the words of DVC on a torn dvc.lock are "is invalid"
    is_silent = not re.search("error: |is invalid", run.said, re.IGNORECASE)
    if run.code and run.code > 0 and is_silent:
        return ["ended without a word"]
    return []


def differences(found: dict[str, str], wanted: dict[str, str]) -> list[str]:
    """Return the first files that differ from the undisturbed copy."""
    names = sorted({*found, *wanted})
    return [f"{n} differs" for n in names if found.get(n) != wanted.get(n)][:3]
