"""Every mistake a user can make: one line, exit code 2, nothing half-written."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mutated import Outcome, run_stages
from project import copy_project, run_dvc, run_stage, set_params

from minitrain.grammar.verbs import load_verbs

pytestmark = pytest.mark.slow

Stage = Callable[..., Outcome]
TRAIN_2 = ("train", "--backend", "gloo", "--world-size", "2")


@pytest.fixture(scope="module")
def project(stages_by_fork: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small copy with a corpus and shards."""
    folder = copy_project(tmp_path_factory.mktemp("project"))
    done = run_stages(stages_by_fork, folder, [["check"], ["corpus"], ["shard"]])
    assert done.code == 0, done.output
    return folder


@pytest.fixture
def copy(project: Path, tmp_path: Path) -> Path:
    """A copy of the copy that a test may spoil."""
    return Path(shutil.copytree(project, tmp_path / "copy"))


@pytest.fixture
def stage(stages_by_fork: str, copy: Path) -> Stage:
    """Run a stage of the copy in a fork: what ends before any rank starts."""
    return lambda *words: run_stages(stages_by_fork, copy, [words])


def assert_one_line(done: Any, *parts: str) -> None:
    """Accept an Outcome, or a finished process with ranks of its own."""
    if isinstance(done, Outcome):
        code, said = done.code, done.output
    else:
        code, said = done.returncode, done.stderr
    assert code == 2, said
    lines = [line for line in said.splitlines() if line]
    assert len(lines) == 1, said
    assert lines[0].startswith("error: ")
    for part in parts:
        assert part in lines[0], lines[0]


def half_written(folder: Path) -> list[Path]:
    return [*(folder / "data").rglob("*.tmp"), *(folder / "metrics").rglob("*.tmp")]


# one of each kind; all lines of params.yaml: tests/core/test_params.py
CHECK = {
    "unknown key": ({"train.lr": 1}, "train.lr", "unknown key"),
    "other torch": ({"environment.torch": "1.0.0"}, "environment.torch = '1.0.0'"),
    "no source": ({"corpus.source": "mine.txt"}, "corpus.source = 'mine.txt': no such"),
    "no deps of the model": (
        {"model.deps": "mine"},
        "model.deps = 'mine': no such file or folder",
    ),
    "misspelt": (
        {"model.file": "minitrain/model/gtp.py"},
        "gtp.py': no such file (did you mean minitrain/model/gpt.py?)",
    ),
    "no such GPUs": ({"nccl.world_sizes": [8]}, "nccl.world_sizes: 8", "GPUs"),
    "hierarchical on a GPU": (
        {"train.sync": "hierarchical", "nccl.world_sizes": [2]},
        "train.sync = 'hierarchical'",
        "it computes on the CPU",
    ),
}


@pytest.mark.parametrize("name", CHECK)
def test_check_stage(stage: Stage, copy: Path, name: str) -> None:
    changes, *parts = CHECK[name]
    set_params(copy, changes)
    (copy / "data/check.txt").unlink()
    assert_one_line(stage("check"), *parts)
    assert not (copy / "data/check.txt").exists()


# all lines: tests/data/test_text.py, tests/grammar/test_grammar_verbs.py
SOURCES = {
    "missing": ("mine.txt", None, "mine.txt", "no such file"),
    "not JSON": ("mine.jsonl", b'{"text": "a"}\n{"text"\n', "mine.jsonl:2", "JSON"),
    "doubled verb": (
        "mine.csv",
        b"lemma,third_person,past,past_participle,present_participle\n"
        b"go,goes,went,gone,going\ngo,goes,went,gone,going\n",
        "mine.csv",
        "go",
    ),
}


@pytest.mark.parametrize("name", SOURCES)
def test_corpus_stage(stage: Stage, copy: Path, name: str) -> None:
    file, content, *parts = SOURCES[name]
    if content is not None:
        (copy / file).write_bytes(content)
    set_params(copy, {"corpus.source": file})
    (copy / "data/corpus.jsonl").unlink()
    assert_one_line(stage("corpus"), *parts)
    assert not (copy / "data/corpus.jsonl").exists()
    assert not half_written(copy)


def test_more_sentences_than_the_grammar_holds(stage: Stage, copy: Path) -> None:
    verbs = copy / "data/verbs.csv"
    verbs.write_text("\n".join(verbs.read_text().splitlines()[:2]) + "\n")
    assert len(load_verbs(verbs)) == 1
    set_params(copy, {"corpus.num_sentences": 10**9})
    assert_one_line(stage("corpus"), "corpus.num_sentences", "1000000000")


def test_more_ranks_than_samples(stage: Stage, copy: Path) -> None:
    (copy / "mine.txt").write_text("one\ntwo\n")
    set_params(copy, {"corpus.source": "mine.txt", "gloo.world_sizes": [4]})
    assert stage("corpus").code == 0
    done = stage("shard")
    assert done.code == 2
    expected = "error: world size = 4: must be at most the number of samples, 2"
    assert done.line == expected
    assert not half_written(copy)


def model(forward: str, *parameters: str) -> str:
    """A model file: what its forward pass returns, and what its parameters are."""
    lines = [
        "class M(torch.nn.Module):",
        "    def __init__(self):",
        "        super().__init__()",
        *(f"        self.{parameter}" for parameter in parameters),
        "    def forward(self, input_ids, labels):",
        f"        return SimpleNamespace({forward})",
        "def mine(params, vocab_size): return M()",
    ]
    return "\n".join(lines) + "\n"


USED, LEFT_OUT = (
    f"{name} = torch.nn.Parameter(torch.ones(()))" for name in ("used", "left_out")
)
# all lines: tests/model/test_factory.py
MODELS = {
    "missing factory": ("x = 1", "mine", "model.factory = 'mine': mine.py has no"),
    "no gradient": (
        model("loss=self.used * 1.0", USED, LEFT_OUT),
        "mine",
        "parameter left_out (1 in all) gets no gradient",
    ),
    "exit while imported": ("raise SystemExit(0)", "mine", "mine.py: SystemExit: 0"),
}


@pytest.mark.parametrize("name", MODELS)
def test_own_model(stage: Stage, copy: Path, name: str) -> None:
    source, factory, part = MODELS[name]
    if source is not None:
        header = "import torch\nfrom types import SimpleNamespace\n"
        (copy / "mine.py").write_text(header + source)
    set_params(copy, {"model.file": "mine.py", "model.factory": factory})
    done = stage(*TRAIN_2)
    assert_one_line(done, part)
    assert not (copy / "data/runs").exists()


def test_warm_up_of_all_epochs(stage: Stage, copy: Path) -> None:
    # 200 sentences, 8 a batch: an epoch is at least 25 steps
    changes = {"train.num_steps": None, "train.num_epochs": 1}
    set_params(copy, {**changes, "train.num_warmup_steps": 60})
    done = stage("train", "--backend", "gloo", "--world-size", "1")
    assert_one_line(
        done, "params.yaml: train.num_warmup_steps = 60", "below the number"
    )


def test_largest_seed_and_an_occupied_port_are_no_mistakes(
    copy: Path, taken_port: str
) -> None:
    """Ranks that a stage starts meet in a file."""
    set_params(copy, {"train.seed": 2**32 - 1})
    done = run_stage(copy, *TRAIN_2, MASTER_PORT=taken_port)
    assert done.returncode == 0, done.stderr


def test_no_shards_for_so_many(stage: Stage, copy: Path) -> None:
    done = stage("train", "--backend", "gloo", "--world-size", "7")
    assert_one_line(
        done, "data/shards/world-7: no shards for 7 processes", "gloo.world_sizes"
    )


def test_no_gpus_for_nccl(stage: Stage, copy: Path) -> None:
    done = stage("train", "--backend", "nccl", "--world-size", "2")
    assert_one_line(done, "nccl.world_sizes: 2 processes need 2 GPUs")


def test_unwritable_folder(stage: Stage, copy: Path) -> None:
    # a file where a folder must be: holds for root, too
    shutil.rmtree(copy / "data")
    (copy / "data").write_text("in the way")
    assert_one_line(stage("check"), "data")


@pytest.mark.pipeline
def test_through_dvc_the_same_line(copy: Path) -> None:
    """A loss that becomes NaN in a rank."""
    set_params(copy, {"train.learning_rate": 1e9})
    code, output = run_dvc(copy, "repro", "train@2")
    assert code == 255
    assert "error: train: the loss is" in output
    assert "a smaller train.learning_rate" in output
    assert "Traceback" not in output
    assert "torch.distributed" not in output
    assert not (copy / "data/runs").exists()
