"""Measured figures of tests, to be read after a run on a quiet machine."""

import os


def figure(what: str, found: float, expected: float) -> float:
    """Return ``found``. Append a row to the file that MINITRAIN_FIGURES names, if it is
    set: test, ``what``, ``expected``, ``found``, and the relative error.
    """
    if file := os.environ.get("MINITRAIN_FIGURES"):
        test = os.environ["PYTEST_CURRENT_TEST"].rpartition("::")[2]
        numbers = f"{expected:.3f}\t{found:.3f}\t{found / expected - 1:+.2%}"
        with open(file, "a") as rows:
            rows.write(f"{test.removesuffix(' (call)')}\t{what}\t{numbers}\n")
    return found
