"""Record an unchanged training command: what it computes, and where its time goes.

The command starts as it is, with torchrun, accelerate or python; its output, signals
and exit code are its own. Each process that trains writes its own file into the
folder (docs/recording.md), as with `minitrain.record(...)` in the script. `minitrain
show` shows the recording, `minitrain verify` compares two.
"""

import argparse
import json
import os
import shutil
from pathlib import Path

from minitrain.cli.command import Answer
from minitrain.core.errors import UserError
from minitrain.recording.format import is_recording
from minitrain.recording.startup import SETTINGS, STARTUP

EXAMPLES = {
    "two processes of a script": (
        "minitrain record runs/two -- torchrun --nproc-per-node 2 train.py"
    ),
    "every step, until the first alarm": (
        "minitrain record --every 1 --on-alarm raise runs/all -- python train.py"
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the folder and the settings of the recorder to ``parser``."""
    parser.usage = "minitrain record FOLDER [options] -- COMMAND"
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="a new folder")
    parser.add_argument(
        "--every",
        type=int,
        default=10,
        metavar="N",
        help="record each N-th step, and the first three (default 10)",
    )
    parser.add_argument(
        "--on-alarm",
        choices=("print", "raise"),
        default="print",
        help="raise: end the run at an alarm (default print)",
    )
    parser.add_argument(
        "--timeout",
        dest="timeout_s",
        type=float,
        default=30.0,
        metavar="S",
        help="report a step or a rank that takes so many seconds (default 30)",
    )
    parser.add_argument(
        "--modules",
        action="store_true",
        help="also record what each module within the model gets and returns",
    )


def answer(options: argparse.Namespace) -> Answer:
    """Replace this process by the command (exec), with the recorder in its environment.
    Does not return; raises UserError for invalid arguments.
    """
    command, folder = options.command, options.folder.absolute()
    if not command:
        raise UserError(
            "minitrain record: no command; minitrain record FOLDER -- COMMAND"
        )
    if shutil.which(command[0]) is None:
        hint = f"; try python {command[0]}" if command[0].endswith(".py") else ""
        raise UserError(f"minitrain record: {command[0]}: no such command{hint}")
    if options.every < 1:
        raise UserError(f"--every = {options.every}: must be at least 1")
    # NaN is not above 0, either
    if not options.timeout_s > 0:
        raise UserError(f"--timeout = {options.timeout_s:g}: must be above 0")
    # the folder, or the one in which it is made
    place = next(p for p in (folder, *folder.parents) if os.path.exists(p))
    if not (place.is_dir() and os.access(place, os.W_OK | os.X_OK)):
        raise UserError(f"{place}: must be a folder with write permission")
    if place == folder and is_recording(folder):
        raise UserError(f"{options.folder}: has a recording; name another folder")
    copied = ("every", "on_alarm", "timeout_s", "modules")
    settings = {"folder": str(folder), **{n: vars(options)[n] for n in copied}}
    paths = [STARTUP, *filter(None, [os.environ.get("PYTHONPATH")])]
    added = {SETTINGS: json.dumps(settings), "PYTHONPATH": os.pathsep.join(paths)}
    os.execvpe(command[0], command, {**os.environ, **added})
