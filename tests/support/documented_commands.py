"""Every command of README.md and the docs: which test runs it, or why none does.

tests/project/test_commands.py holds both tables to the pages, and the first to tests.
"""

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
    "minitrain summary": (
        "tests/cli/test_cli_summary.py::test_lines_are_printed_and_given_to_programs"
    ),
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

STUDY = "a study, minutes to an hour; its README holds what came of it"
SUITE = "a part of the tests, which would start themselves"
SETS_UP = "installs from the network; CI runs it (.ci/run)"
MANY_HOSTS = (
    "needs another host; tests/project/test_several_hosts.py does the same between two "
    "network namespaces"
)
SLURM = "needs a cluster; tests/project/test_slurm.py submits these scripts to its own"
YOURS = "names files of yours; tests/cli tries the command on others"
FIREWALL = "would change who can reach this machine"
HUGGING_FACE = "needs transformers, which minitrain does not"
NOT_RUN = {
    "make": SETS_UP,
    "make check": SETS_UP,
    "make test": SETS_UP,
    "make .venv/installed": SETS_UP,
    "make .venv-peers/installed": SETS_UP,
    "source .venv/bin/activate": "a convenience of your shell",
    "git clone ... && cd minitrain && make .venv/installed": SETS_UP,
    "dvc exp run -S train.learning_rate=0.001": (
        "the tutorial's test runs the same of other keys"
    ),
    "git checkout params.yaml": "git alone",
    "git checkout params.yaml dvc.lock metrics": "git alone",
    "git switch --create my-exercise": "git alone; the tutorial's test does the same",
    'git commit --all --message "What I changed, what I expected, what came"': (
        "git alone; the tutorial's test does the same"
    ),
    "git diff --exit-code metrics/equivalence.json": (
        "git alone; tests/project/test_pipeline.py compares the bytes of two copies"
    ),
    "diff before.txt after.txt": "of what a test prints; diff alone",
    "cp metrics/equivalence.json undisturbed.json": "a copy alone",
    "diff undisturbed.json metrics/equivalence.json": (
        "tests/project/test_interrupted.py compares more than this file"
    ),
    "minitrain check my_model.py:build": YOURS,
    "minitrain check my_model.py:alone --sync all": (
        "thirteen trainings; tests/cli/test_cli_check.py::test_all_strategies"
    ),
    "minitrain verify A B": YOURS,
    "minitrain verify a.pt b.pt": YOURS,
    "minitrain verify runs/one runs/two": YOURS,
    "minitrain verify runs/one runs/bug": YOURS,
    "minitrain verify runs/a runs/b": YOURS,
    "minitrain verify runs/a runs/b --twin runs/c --picture apart.png": YOURS,
    "minitrain verify data/runs/gloo-2 data/runs/gloo-1": (
        "ends with code 1, as it should: tests/compare/test_run_diff.py"
    ),
    "minitrain report": "tests/report draws from small results; stages.report is run",
    "minitrain check my_classifier.py:build --batches my_classifier.py:batches": (
        HUGGING_FACE
    ),
    "minitrain check my_masked.py:build --batches my_masked.py:batches": HUGGING_FACE,
    "minitrain check my_masked.py:build --batches my_masked.py:batches "
    "--count my_masked.py:count": HUGGING_FACE,
    "MINITRAIN_TWIN=1 python train.py": YOURS,
    "MINITRAIN_TRACEBACK=1 dvc repro": "there is none to show of a run that ends well",
    "dvc repro shard": "tests/project/test_several_hosts.py runs the stage itself",
    "dvc repro check corpus shard": SLURM,
    "dvc repro --force train@2": (
        "is to be interrupted; tests/project/test_interrupted.py does that"
    ),
    "dvc repro --force equivalence": (
        "tests/project/test_pipeline.py builds two copies instead, and compares"
    ),
    "dvc repro --force --single-item baseline": (
        "measures speeds; the stage is run by tests/project/test_pipeline.py"
    ),
    "python -m stages.train --backend gloo --world-size 4 "
    "--resume .minitrain/checkpoints/gloo-2-4f0c2c1e9a7b": (
        "names a checkpoint of yours; tests/train/test_other_ranks.py"
    ),
    "dvc commit --force train@4 && dvc repro": MANY_HOSTS,
    "dvc commit --force train@4": SLURM,
    "launch/host --world-size 4 --nnodes 2 --rdzv-endpoint 10.0.0.1:29400": MANY_HOSTS,
    "launch/host --world-size 4 --nnodes 2 --rdzv-endpoint 10.0.0.1": MANY_HOSTS,
    "sbatch launch/slurm/one-node.sbatch": SLURM,
    "sbatch launch/slurm/one-node.sbatch train@2": SLURM,
    "sbatch --nodes=2 --cpus-per-task=2 launch/slurm/many-nodes.sbatch 4": SLURM,
    "sbatch --cpus-per-task=4 launch/slurm/one-node.sbatch": SLURM,
    "iptables -A INPUT -i eth1 -p tcp -s 10.0.0.1 -j ACCEPT": FIREWALL,
    "iptables -A INPUT -i eth1 -p tcp -s 10.0.0.2 -j ACCEPT": FIREWALL,
    "iptables -A INPUT -i eth1 -p tcp -j DROP": FIREWALL,
    "ss -tlnp": "tests/project/test_pipeline.py looks at the sockets of ranks",
    "MINITRAIN_ALL=1 python -m pytest tests/project/test_mutants.py": SUITE,
    "python -m pytest tests/studies/test_bugs.py": SUITE,
    "python -m pytest tests/proof/test_clean_runs.py": SUITE,
    "python -m pytest tests/proof/test_forward.py": SUITE,
    "python -m pytest tests/recording/test_recorder.py -k same_bits": SUITE,
    "make study-invariance": STUDY,
    "make study-resume": STUDY,
    "make study-chaos": STUDY,
    "make study-noise": STUDY,
    "make study-prediction": STUDY,
}
