"""A trial: a pipeline run, a fault, and a second run."""

import shutil
import sys
from dataclasses import replace
from random import Random

import disk
import judge
import leftovers
from copies import Undisturbed, copy_without
from judge import Ran
from processes import kill_all
from runs import Trial, repeat, watch
from world import World
from wreck import Fault

# files that DVC does not write atomically, with its words on one that is torn
TORN = {
    ".dvc/tmp/rwlock": ("Unable to read RWLock-file",),
    "dvc.lock": ("'./dvc.lock' is invalid", "'./dvc.lock' validation failed"),
}


def run_trial(
    number: int, kind: str, fault: Fault, seed: int, done: Undisturbed, limit_s: float
) -> Trial:
    """Run trial ``number``, drawn from ``seed``.

    Each run may take ``limit_s`` seconds after the fault in addition to the duration of
    the undisturbed target.
    """
    random = Random(f"{seed} {number}")
    target = random.choice(fault.targets)
    folder = done.folder.with_name(f"trial-{number}")
    mark = f"{folder} first"
    world = World(folder, target, mark, random, done.took_s[target])
    trial = Trial(number, kind, target)
    shared = leftovers.segments()
    try:
        if fault.on_disk:
            disk.mount(world)
        copy_without(done, target, folder)
        committed = (folder / "dvc.lock").read_bytes()
        if fault.is_first:
            trial.hit = fault.do(world)
        world.start("first")
        if not fault.is_first:
            trial.hit = fault.do(world)
        first, log = watch(world, trial, limit_s), world.log
        for remedy in world.remedies:
            remedy()
        # immediately, as with `make`, even if processes of the first run are left
        world.mark = f"{folder} second"
        world.more = {}
        second, saved = repeat(world, trial, limit_s + done.took_s[target], mark)
        torn: list[str] = []
        by_hand = second.code != 0 and torn_file(second)
        if by_hand:
            # docs/troubleshooting.md: rm .dvc/tmp/rwlock, or git checkout dvc.lock
            (folder / by_hand).unlink()
            if by_hand == "dvc.lock":
                (folder / by_hand).write_bytes(committed)
            torn = judge.wrong_words("torn", second)
            second, saved = repeat(world, trial, limit_s + done.took_s[target], mark)
        marks = (mark, world.mark)
        left = leftovers.left_behind(marks, folder, world.temporary, shared)
        # a stage may print its error after DVC has exited
        first = replace(first, said=log.read_text(errors="replace"))
        found = judge.wrong(first, second, done.digests) + torn + left
        # swapped checkpoints are both invalid
        if saved and trial.went_on_from is None and "swap" not in kind:
            found.append("second run began anew, though there was a checkpoint")
        trial.exit_code, trial.outcome = first.code, judge.outcome(first, bool(by_hand))
        lines = [x for x in first.said.splitlines() if x.startswith("error: ")]
        trial.said, trial.wrong = "; ".join(lines), "; ".join(found)
        if found:
            complain(trial, first, second)
    finally:
        kill_all(mark)
        world.end()
        for one in [folder, *folder.parent.glob(f"{folder.name}-*")]:
            shutil.rmtree(one) if one.is_dir() else one.unlink(missing_ok=True)
    return trial


def torn_file(run: Ran) -> str:
    """Return the file that DVC's words call torn, or ""."""
    files = (f for f, words in TORN.items() if any(word in run.said for word in words))
    return next(files, "")


def complain(trial: Trial, *runs: Ran) -> None:
    """Print the output of the runs, since the folder will be removed."""
    title = f"trial {trial.trial} ({trial.kind} on {trial.target}): {trial.wrong}"
    print(title, *(run.said for run in runs), sep="\n", file=sys.stderr)
