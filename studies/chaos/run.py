"""Inject random faults into small pipelines, many times, and judge each outcome.

python studies/chaos/run.py --trials 24
"""

import argparse
import signal
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import pandas as pd
from chaos_settings import Chaos
from copies import Undisturbed, make_undisturbed
from counts import summary
from faults import FAULTS
from runs import Trial
from study_settings import load_study
from trials import run_trial

from minitrain.core.errors import EvidenceError, run_stage
from minitrain.core.files import open_atomic, write_json
from minitrain.core.progress import progress
from minitrain.core.provenance import provenance

STUDY = Path(__file__).resolve().parent


def main() -> None:
    # trials must be interruptible under nohup, too: children inherit what is ignored,
    # but no handler
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    study = load_study(STUDY, Chaos)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=study.trials)
    parser.add_argument("--only", choices=FAULTS, help="one kind of fault")
    parser.add_argument("--out", type=Path, default=STUDY)
    options = parser.parse_args()

    with tempfile.TemporaryDirectory(prefix="chaos-") as name:
        done = make_undisturbed(Path(name) / "undisturbed")
        kinds = [options.only] if options.only else [*FAULTS]
        trials = run_trials(study, done, options.trials, kinds)

    with open_atomic(options.out / "results.csv") as file:
        table = pd.DataFrame([asdict(trial) for trial in trials])
        table.round(3).to_csv(file, index=False, lineterminator="\n")
    outcomes = {**summary(trials), **provenance(Path(__file__))}
    write_json(options.out / "outcomes.json", outcomes)
    if bad := [trial for trial in trials if trial.wrong]:
        line = f"{len(bad)} of {len(trials)} trials are wrong, the first of them trial"
        raise EvidenceError(f"{line} {bad[0].trial} ({bad[0].kind}): {bad[0].wrong}")


def run_trials(
    study: Chaos, done: Undisturbed, number: int, kinds: Sequence[str]
) -> list[Trial]:
    """Run trials 0 to ``number`` - 1, with the ``kinds`` of faults in turn."""

    def run(number: int) -> Trial:
        kind = kinds[number % len(kinds)]
        return run_trial(number, kind, FAULTS[kind], study.seed, done, study.limit_s)

    with ThreadPoolExecutor(study.jobs) as pool:
        # a single worker runs in this thread, so that Ctrl-C works
        each = pool.map if study.jobs > 1 else map
        return [*progress(each(run, range(number)), "trials", total=number)]


if __name__ == "__main__":
    run_stage(main)
