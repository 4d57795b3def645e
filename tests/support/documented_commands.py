"""Every command of README.md and the docs: which test runs it, or why none does.

tests/project/test_commands.py holds both tables to the pages, and the first to tests.
"""

import re

TUTORIAL = "tests/project/test_tutorial.py::test_every_command_ends_well"
LOOK = "tests/course/test_course.py::test_what_a_student_sees"
HOW_TO = "tests/course/test_how_to.py::test_page_does_what_it_says"
FALSIFY = "tests/course/test_how_to.py::test_what_would_refute_the_proof_does_not"
EXAMPLES = "tests/frameworks/test_examples.py::"
LOOPS = EXAMPLES + "test_a_run_repeated_has_equal_bits"
# by forks, with the bits of what users start
FORKED = EXAMPLES + "test_one_process_and_two_are_the_same_computation"
WITH_BUG = EXAMPLES + "test_the_planted_bug_is_named"

CLASS = "tests/project/test_dvc_views.py::test_class_pulls_what_the_teacher_ran"

RUN_BY = {
    "minitrain summary": ("tests/report/test_report_terminal.py::test_command"),
    "dvc remote add --default class /srv/minitrain": CLASS,
    "dvc push": CLASS,
    "git add --all": CLASS,
    'git commit --message "What the class starts from"': CLASS,
    "dvc pull": CLASS,
    "dvc stage list": TUTORIAL,
    "git switch --create mine": TUTORIAL,
    'git commit --all --message "Result on my machine"': TUTORIAL,
    "dvc repro": TUTORIAL,
    "dvc params diff": TUTORIAL,
    "dvc metrics diff": TUTORIAL,
    "dvc plots diff": TUTORIAL,
    "git switch --create rate": TUTORIAL,
    'git commit --all --message "Learning rate 0.0006"': TUTORIAL,
    "git switch mine": TUTORIAL,
    "dvc checkout": TUTORIAL,
    "dvc exp run -S train.global_batch_size=8": TUTORIAL,
    "dvc exp run -S 'gloo.world_sizes=[1,2,4]'": TUTORIAL,
    "make experiments": TUTORIAL,
    "git checkout minitrain/train/worker.py": TUTORIAL,
    "python docs/course/look.py": LOOK,
    "python docs/course/look.py | tee before.txt": LOOK,
    "python docs/course/look.py | tee after.txt": LOOK,
    "cp CHANGELOG.md my-text.txt": HOW_TO,
    "minitrain check my_model.py:alone": HOW_TO,
    "sha256sum data/runs/gloo-2/states/state-rank-0.pt "
    "data/runs/gloo-2/states/state-rank-1.pt": FALSIFY,
    "minitrain verify data/runs/gloo-2/states/state-rank-0.pt "
    "data/runs/replay-2/state.pt": FALSIFY,
    'grep -rhE --include="*.py" "^(from|import) " minitrain/proof/witness': FALSIFY,
    "minitrain explain": "tests/cli/test_walk.py::test_command",
    "minitrain doctor": (
        "tests/cli/test_doctor.py::test_command_prints_json_and_has_an_exit_code"
    ),
    "python examples/nanogpt_style.py runs/one": LOOPS,
    "torchrun --nproc-per-node 2 examples/nanogpt_style.py runs/two": FORKED,
    ".venv-peers/bin/python examples/with_fabric.py runs/one": FORKED,
    ".venv-peers/bin/python -m torch.distributed.run --nproc-per-node 2 "
    "examples/with_fabric.py runs/two": LOOPS,
    "torchrun --nproc-per-node 2 examples/nanogpt_style.py runs/bug --bug": WITH_BUG,
}

# kinds of commands that no test runs as they stand -> why
NOT_RUN = {
    r"make( check| test)?|make \.venv.*|git clone .*": (
        "installs from the network; CI runs it (.ci/run)"
    ),
    r"git (checkout|switch|commit|diff) .*|source .*|diff .*|cp metrics.*": (
        "git or the shell alone; tests/project/test_tutorial.py runs others like it"
    ),
    r"make study-\w+": "a study, minutes to an hour; its README holds the results",
    r"(MINITRAIN_ALL=1 )?python -m pytest tests/.*": "a part of the tests themselves",
    r"(sbatch|dvc (commit|repro check corpus shard)).*": (
        "needs a cluster; tests/project/test_slurm.py submits these scripts to its own"
    ),
    r"launch/host .*|dvc repro shard": (
        "needs another host; tests/project/test_several_hosts.py does the same between "
        "two network namespaces"
    ),
    r"iptables .*": "would change who can reach this machine",
    r"ss -tlnp": "tests/project/test_pipeline.py looks at the sockets of ranks",
    r"minitrain (verify|check) (A B|a\.pt b\.pt|runs/.*|my_model\.py:build)": (
        "names files of yours; tests/cli tries the command on others"
    ),
    r"MINITRAIN_TWIN=1 python train\.py": "names a script of yours",
    r"minitrain check my_model\.py:alone --sync all": (
        "thirteen trainings; tests/cli/test_cli_check.py has all strategies"
    ),
    r"minitrain check my_(classifier|masked)\.py:build .*": (
        "needs transformers, which minitrain does not"
    ),
    r"minitrain verify data/runs/gloo-2 data/runs/gloo-1": (
        "ends with code 1, as it should: tests/compare/test_run_diff.py"
    ),
    r"minitrain report": "tests/report draws from small results; stages.report is run",
    r"MINITRAIN_TRACEBACK=1 dvc repro": "there is none to show of a run that ends well",
    r"dvc exp run -S train\.learning_rate=0\.001": (
        "tests/project/test_tutorial.py runs the same of other keys"
    ),
    r"dvc repro --force train@2": "tests/project/test_interrupted.py interrupts one",
    r"dvc repro --force (equivalence|--single-item baseline)": (
        "tests/project/test_pipeline.py runs the stages, and compares two copies"
    ),
    r"python -m stages\.train .* --resume .*": (
        "names a checkpoint of yours; tests/train/test_other_ranks.py"
    ),
}


def reason(command: str) -> str | None:
    """Why no test runs ``command``."""
    found = [why for kind, why in NOT_RUN.items() if re.fullmatch(kind, command)]
    return found[0] if found else None
