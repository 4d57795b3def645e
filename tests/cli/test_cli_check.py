"""``minitrain check``: one's own model from the command line."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import output_of
from one_line import refusal
from project import PARAMS_FILE, set_params

from minitrain.check import data_parallel as check_module
from minitrain.check.inputs import (
    LONGEST,
    find,
    find_factory,
    reading_for,
    text_batches,
)
from minitrain.cli import check
from minitrain.cli.check import in_words
from minitrain.cli.main import run
from minitrain.core.errors import RankError, UserError
from minitrain.data.batches import IGNORE_INDEX

pytestmark = pytest.mark.slow

MODEL = """
from types import SimpleNamespace
from typing import NamedTuple
import torch
from beside import WIDTH

class Output:
    def __init__(self, loss):
        self.loss = loss

class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(256, WIDTH)
        self.head = torch.nn.Linear(WIDTH, 256)

    def forward(self, input_ids, labels):
        logits = self.head(self.embedding(input_ids))[:, :-1].flatten(0, 1)
        targets = labels[:, 1:].flatten()
        return Output(torch.nn.functional.cross_entropy(logits, targets))

def build():
    return Small()

class MeanOfRows(Small):
    # short rows count as much as long ones: no mean over targets
    def forward(self, input_ids, labels):
        rows = [super(MeanOfRows, self).forward(i[None], l[None]).loss
                for i, l in zip(input_ids, labels)]
        return Output(torch.stack(rows).mean())

def build_wrong():
    return MeanOfRows()

class Counting(Small):
    def forward(self, input_ids, labels):
        self.calls = getattr(self, "calls", 0) + 1
        loss = super().forward(input_ids, labels).loss
        return Output(loss * 2 if self.calls > 4 else loss)

def build_counting():
    return Counting()

def linear():
    return torch.nn.Linear(3, 1)

class Pair(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor

def batches():
    generator = torch.Generator().manual_seed(1)
    return [Pair(torch.randn(8, 3, generator=generator), torch.ones(8, 1))] * 3

def loss(model, batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])

def batch_norm():
    return torch.nn.Sequential(
        torch.nn.AdaptiveAvgPool2d(2), torch.nn.BatchNorm2d(3), torch.nn.Flatten(),
        torch.nn.Linear(12, 10),
    )

def images():
    chance = torch.Generator().manual_seed(0)
    return [(torch.randn(8, 3, 8, 8, generator=chance), torch.arange(8))] * 3

def loss_of_images(model, batch):
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])

def of_the_pipeline(model, vocab_size):
    small = Small()
    small.embedding = torch.nn.Embedding(vocab_size, model.n_embd)
    small.head = torch.nn.Linear(model.n_embd, vocab_size)
    return small

def of_two(width, depth):
    return of_one(width)

def of_one(width):
    return of_the_pipeline(SimpleNamespace(n_embd=width), 256)
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch) -> str:
    (tmp_path / "my_model.py").write_text(MODEL)
    (tmp_path / "beside.py").write_text("WIDTH = 8\n")
    monkeypatch.chdir(tmp_path)
    return "my_model.py"


OWN_DATA = ("--batches", "my_model.py:batches", "--loss", "my_model.py:loss")


def test_model_that_reads_text(model: str, capsys) -> None:
    code, text = output_of("check", f"{model}:build")
    assert code == 0
    assert capsys.readouterr().err.startswith(
        "training 3 steps with 2 processes, and again with one; a witness computes in "
        "float64 ...\n"
    )
    lines = text.splitlines()
    assert lines[-2].startswith("proven: bit-identical to its replay, and ")
    assert lines[-1].endswith(" s")
    words = [line.split() for line in lines]
    assert ["ranks", "equal"] in [line[:2] for line in words]
    # as the report has it: no bits were compared
    assert ["trained", "passed"] in [line[:2] for line in words]
    (near,) = [line for line in lines if line.startswith("one_process_gradients ")]
    assert re.search(r" within tolerance +\S+e-\d+ apart; allowed: ", near)


def test_model_with_batches_and_a_loss(model: str, capsys, monkeypatch) -> None:
    """And batches of a type of its file, which no rank imports by its name."""
    monkeypatch.setattr("minitrain.core.progress.SECONDS_BETWEEN_LINES", 0)
    code, text = output_of("check", f"{model}:linear", *OWN_DATA, "--json")
    # a slow machine is not silent
    shown = capsys.readouterr().err
    for bar in ("replay: 3/3", r"witness: \d+", "one process: 3/3"):
        assert re.search(rf"^{bar} \[", shown, flags=re.MULTILINE)
    (ladder,) = json.loads(text)["strategies"].values()
    assert (code, ladder["verdict"]) == (0, "proven")
    replayed = ladder["rungs"]["replay"]
    assert replayed["verdict"] == "equal"
    keys = ["bytes_equal", "max_ulp", "max_abs_diff", "verdict", "detail"]
    assert [*replayed] == keys


def test_model_that_calls_a_collective_is_built_for_its_size(model: str) -> None:
    Path("speaks.py").write_text(
        "import torch\n\n"
        "def build():\n"
        "    torch.distributed.barrier()\n"
        "    return torch.nn.Linear(3, 1)\n"
    )
    assert reading_for(find("speaks.py:build", "MODEL"), 8, None) == (3, LONGEST, "")


def test_large_model_reads_short_lines_in_two_steps_unless_told(
    model: str, monkeypatch
) -> None:
    # the model has 256 * 8 + 8 * 256 + 256 = 4352 parameters: 16 bytes of 8 lines
    monkeypatch.setattr("minitrain.check.inputs.AFFORDED", 4352 * 8 * 16)
    monkeypatch.setattr("minitrain.check.inputs.LARGE", 4351)
    factory = find(f"{model}:build", "MODEL")
    less = "8 lines of at most 16 bytes, 2 steps: 0 million parameters"
    assert reading_for(factory, 8, None) == (2, 16, less)
    assert reading_for(factory, 8, 3)[0] == 3


def test_lines_that_are_cut_have_different_lengths(tmp_path: Path) -> None:
    """Otherwise a mean of means would be the mean, and no check could see it."""
    path = tmp_path / "text.txt"
    path.write_bytes(b"abcdefghijkl" * 6 + b"\n")
    for longest in (8, LONGEST):
        (batch,) = text_batches(path, 5, 1, longest)
        lengths = (batch["labels"] != IGNORE_INDEX).sum(1)
        assert lengths.tolist() == [longest - cut for cut in (0, 1, 2, 3, 0)]


def test_models_that_are_a_breach(model: str) -> None:
    code, text = output_of("check", f"{model}:build_wrong")
    *_, verdict, took, hint = text.splitlines()
    assert code == 1
    assert verdict.startswith("breach: witness_mean: the loss is not a mean over ")
    assert took.endswith(" s")
    assert hint == "--count NAME gives a count of yours"
    # a replay calls one model for both ranks: one that counts differs from the fifth on
    code, text = output_of("check", f"{model}:build_counting")
    assert code == 1
    assert "\nbreach: " in text
    assert "\nfirst difference: step 2" in text


def test_all_strategies(model: str, capsys, monkeypatch) -> None:
    monkeypatch.setattr("minitrain.core.progress.SECONDS_BETWEEN_LINES", 0)
    few = ("ddp", "invariant", "fsdp", "powersgd")
    monkeypatch.setattr(check, "STRATEGIES", few)
    own = ["--batches", f"{model}:images", "--loss", f"{model}:loss_of_images"]
    images = ["check", f"{model}:batch_norm", *own]
    code, text = output_of(*images, "--sync", "all", "--steps", 12)
    assert code == 0
    shown = capsys.readouterr().err
    assert "float64: 4 strategies, one after the other ...\n" in shown
    assert "strategies: 4/4 [" in shown
    assert "replay: " not in shown
    found = dict(line.split(maxsplit=1) for line in text.splitlines()[:-1])
    verdicts = [found[name].partition(":")[0] for name in few[:3]]
    assert verdicts == ["proven", "proven", "undecided"]
    end = "batch norm normalizes by each rank's own samples"
    for name in few[:3]:
        assert f"; not compared with one process: {end}" in found[name]
    # only its loss is compared, and was
    assert "one process" not in found["powersgd"]
    with pytest.raises(UserError, match="steps = 3: at least 12 for powersgd"):
        run([*images, "--sync", "powersgd"])


def test_strategy_that_fails_leaves_the_results_of_the_others(
    model: str, monkeypatch
) -> None:
    def tried(*, sync: str, **given: Any) -> Any:
        if sync == "fsdp":
            raise RankError("rank 0: ValueError: no")
        return ladder_of(**given)

    ladder_of = check_module.check_data_parallel
    monkeypatch.setattr(check_module, "check_data_parallel", tried)
    every = ["check", f"{model}:linear", *OWN_DATA, "--sync", "all"]
    monkeypatch.setattr(check, "STRATEGIES", ("ddp", "fsdp"))
    code, text = output_of(*every, "--json")
    found = json.loads(text)
    assert (code, found["strategies"]["ddp"]["verdict"]) == (1, "proven")
    assert found["failed"] == {"fsdp": "rank 0: ValueError: no"}
    assert found["refused"] == {}
    monkeypatch.setattr(check, "STRATEGIES", ("fsdp",))
    with pytest.raises(RankError, match="rank 0: ValueError: no"):
        run(every)


def test_factory_of_the_pipeline_serves_as_it_is(model: str) -> None:
    """It is given a fresh section, then that of params.yaml, then what --arg says."""
    built, tokens = find_factory(f"{model}:of_the_pipeline", {})
    assert (built().head.in_features, tokens) == (128, 64)
    for name, own in (("of_one", {}), ("of_two", {"depth": 2})):
        built, _ = find_factory(f"{model}:{name}", {"width": 5, **own})
        assert built().head.in_features == 5
    # a params.yaml of another project
    Path("params.yaml").write_text("model: {name: gpt2}")
    assert find_factory(f"{model}:of_the_pipeline", {})[0]().head.in_features == 128
    shutil.copy(PARAMS_FILE, "params.yaml")
    set_params(Path.cwd(), {"model.n_embd": 12, "model.block_size": 16})
    assert find_factory(f"{model}:of_the_pipeline", {})[0]().head.in_features == 12
    few = {"n_embd": 4, "n_head": 2}
    built, tokens = find_factory(f"{model}:of_the_pipeline", few)
    assert (built().head.in_features, tokens) == (4, 16)


BUILD, SIZES = "my_model.py:build", "my_model.py:of_the_pipeline --arg"
BATCHES = "my_model.py:linear --loss my_model.py:loss --batches"
COUNTED = f"{BATCHES} my_model.py:batches --count"
MISTAKES = {
    "my_model.py": "MODEL = 'my_model.py': must be FILE.py:NAME or module:NAME",
    "my_modl.py:build": "MODEL = 'my_modl.py:build': no file my_modl.py (did you",
    "torch.nn:Identity": "torch.nn: no file to read; --text or --batches names",
    "my_model.py:bild": "MODEL = 'my_model.py:bild': my_model.py has no bild (did you",
    "broken.py:x": "MODEL = 'broken.py:x': broken.py: SystemExit: 3",
    "failing.py:SIZE --arg n=1": "MODEL = 'failing.py:SIZE': must be a function if",
    "failing:raises": (
        "MODEL = 'failing:raises': failing: ModuleNotFoundError: No module named "
        "'failing'"
    ),
    "failing.py:raises": "factory: ValueError: no",
    "failing.py:exits": "factory: SystemExit: 0",
    f"{BUILD} --world-size 1": "world_size = 1: must be greater",
    f"{BUILD} --precision fp8": (
        "minitrain check: argument --precision: invalid choice: 'fp8' (choose from "
    ),
    f"{BUILD} --steps many": "minitrain check: argument --steps: invalid int value",
    f"{BUILD} --sync zero": "minitrain check: argument --sync: invalid choice: 'zero'",
    f"{BUILD} --sync no.such:Own": "sync = 'no.such:Own': ModuleNotFound",
    # of all strategies; invariant has another reason
    f"{BUILD} --sync all --world-size 9": (
        "batches[0]: 8 samples cannot be cut into 9 parts (world_size or logical_"
    ),
    f"{SIZES} n_emb=8": "--arg n_emb: unknown key (did you mean n_embd?)",
    f"{SIZES} n_embd=6": "--arg n_embd = 6: must be a multiple of model.n_head = 4",
    f"{SIZES} n_embd": "--arg = 'n_embd': must be KEY=VALUE",
    f"{BUILD} --batch-size 0": "--batch-size = 0: must be 1 or more",
    f"{BATCHES} my_model.py:batches --steps -1": "steps = -1: must be greater than",
    f"{BATCHES} failing.py:ends": "batches: SystemExit: 0",
    f"{BATCHES} failing.py:raises": "batches: ValueError: no",
    f"{COUNTED} failing.py:counts": "count(batch): SystemExit: 0",
}


def test_mistakes_are_one_line(model: str) -> None:
    Path("broken.py").write_text("import sys; sys.exit(3)")
    Path("failing.py").write_text(
        "SIZE = 3\n\ndef raises():\n    raise ValueError('no')\n\n"
        "def exits():\n    import sys; sys.exit(0)\n\n"
        "def ends():\n    exits(); yield 1\n\n"
        "def counts(batch):\n    exits()\n"
    )
    for words, line in MISTAKES.items():
        assert refusal(run, ["check", *words.split()]).startswith(line)


def test_batches_are_read_once_for_all_strategies(model: str, monkeypatch) -> None:
    read = []

    def tried(**given) -> None:
        read.append(given["batches"])
        raise UserError("no")

    monkeypatch.setattr("minitrain.check.data_parallel.check_data_parallel", tried)
    words = ["check", f"{model}:linear", *OWN_DATA, "--sync", "all"]
    assert refusal(run, words) == "no"
    assert len(read) > 1
    assert all(one is read[0] for one in read)
    assert isinstance(read[0], list)


def test_strategy_that_takes_no_such_model_is_named() -> None:
    tried = {"shm": UserError("not on two hosts"), "fsdp": RankError("rank 0: no")}
    assert in_words(tried) == (
        "shm   not tried: not on two hosts\nfsdp  failed: rank 0: no"
    )


def test_batches_of_a_text_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(b"ab\n\nc\nxyz\n" + b"q" * 100)
    first, second = text_batches(path, 2, 2)
    assert first["input_ids"].tolist() == [[97, 98, 0], [120, 121, 122]]
    assert first["labels"].tolist() == [[97, 98, IGNORE_INDEX], [120, 121, 122]]
    # a line is cut, and after the last one comes the first
    assert second["input_ids"].shape == (2, LONGEST - 2)
    assert second["labels"][1].tolist() == [97, 98] + [IGNORE_INDEX] * (LONGEST - 4)
    assert second["labels"].dtype == torch.long
    path.write_text("a\nb\n")
    assert refusal(text_batches, path, 2, 2) == f"{path}: has no line of two bytes"
