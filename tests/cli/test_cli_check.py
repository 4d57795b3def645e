"""``minitrain check``: one's own model from the command line."""

import json
import re
from pathlib import Path

import pytest
import torch
from one_line import refusal

from minitrain.check.import_target import find
from minitrain.check.text_batches import (
    LONGEST,
    PADDING,
    SHORTEST,
    Reading,
    length_for,
    reading_for,
    text_batches,
)
from minitrain.cli import check
from minitrain.cli.check import Climbed, in_words
from minitrain.cli.main import run
from minitrain.core.errors import UserError

pytestmark = pytest.mark.slow

MODEL = """
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

class Curriculum(Small):
    # the loss is another from 17 samples on, of each rank its own
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, input_ids, labels):
        if self.training:
            self.seen += len(labels)
        loss = super().forward(input_ids, labels).loss
        return Output(loss if self.seen <= 16 else loss / 2)

def build_curriculum():
    return Curriculum()

def linear():
    return torch.nn.Linear(3, 1)

def batches():
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(8, 3, generator=generator), torch.ones(8, 1))] * 3

def loss(model, batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])

class Recurrent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(256, 16)
        self.lstm = torch.nn.LSTM(16, 16, 2, batch_first=True, dropout=0.1)
        self.head = torch.nn.Linear(16, 256)

    def forward(self, input_ids, labels):
        hidden, _ = self.lstm(self.embedding(input_ids))
        logits = self.head(hidden)[:, :-1].flatten(0, 1)
        targets = labels[:, 1:].flatten()
        return Output(torch.nn.functional.cross_entropy(logits, targets))

def lstm():
    return Recurrent()

class Block(torch.nn.Module):
    def __init__(self, inside, outside, stride):
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Conv2d(inside, outside, 3, stride, 1, bias=False),
            torch.nn.BatchNorm2d(outside),
            torch.nn.ReLU(),
            torch.nn.Conv2d(outside, outside, 3, 1, 1, bias=False),
            torch.nn.BatchNorm2d(outside),
        )
        self.shortcut = torch.nn.Conv2d(inside, outside, 1, stride, bias=False)

    def forward(self, images):
        return torch.relu(self.body(images) + self.shortcut(images))

def resnet():
    return torch.nn.Sequential(
        Block(3, 8, 1), Block(8, 8, 2), Block(8, 16, 1), Block(16, 16, 2),
        torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(16, 10),
    )

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
    return Small()

def build_from_nothing():
    return of_the_pipeline()

not_a_function = 3
"""

ALL = ["--sync", "all", "--steps", "2"]


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "my_model.py").write_text(MODEL)
    (tmp_path / "beside.py").write_text("WIDTH = 8\n")
    monkeypatch.chdir(tmp_path)
    return "my_model.py"


def test_model_that_reads_text(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", f"{model}:build"]) == 0
    printed = capsys.readouterr()
    assert printed.err == (
        "training 3 steps with 2 processes, and again with one; a witness computes in "
        "float64 ...\n"
    )
    lines = printed.out.splitlines()
    assert lines[-2].startswith("proven: the bits are those of a replay, and ")
    assert lines[-1].endswith(" s")
    words = [line.split() for line in lines]
    assert ["ranks", "equal"] in [line[:2] for line in words]
    # as the report has it: no bits were compared
    assert ["trained", "passed"] in [line[:2] for line in words]
    (near,) = [line for line in lines if line.startswith("one_process_gradients ")]
    assert re.search(r" within tolerance +\S+e-\d+ apart; allowed: ", near)


def test_model_with_batches_and_a_loss(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    own = ["--batches", f"{model}:batches", "--loss", f"{model}:loss"]
    assert run(["check", f"{model}:linear", *own, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (ladder,) = found["strategies"].values()
    assert ladder["verdict"] == "proven"
    assert ladder["rungs"]["replay"]["verdict"] == "equal"


@pytest.mark.parametrize(
    ("name", "own", "equal", "within"),
    [
        ("lstm", [], ["replay", "ranks"], ["witness_probe", "witness_spread"]),
        (
            "resnet",
            ["--batches", "my_model.py:images", "--loss", "my_model.py:loss_of_images"],
            ["replay", "replay_buffers"],
            ["witness_gradients", "witness_probe"],
        ),
    ],
)
def test_dropout_and_batch_norm_are_proven(
    name: str,
    own: list[str],
    equal: list[str],
    within: list[str],
    model: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["check", f"{model}:{name}", *own]) == 0
    rungs = verdicts(capsys.readouterr().out)
    assert {rungs[rung] for rung in equal} == {"equal"}
    assert {rungs[rung] for rung in within} == {"within"}


def test_batch_norm_is_why_one_process_was_not_compared(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "STRATEGIES", ["ddp", "fsdp", "invariant", "powersgd"])
    own = ["--batches", f"{model}:images", "--loss", f"{model}:loss_of_images"]
    assert run(["check", f"{model}:batch_norm", *own, *ALL]) == 0
    said = dict(x.split(maxsplit=1) for x in capsys.readouterr().out.splitlines()[:-1])
    why = "; one process was not compared: batch norm normalizes by each rank's own"
    for name in ("ddp", "fsdp", "invariant"):
        assert f"{why} samples" in said[name]
    # it is held to its loss, and was
    assert "one process" not in said["powersgd"]


def test_buffer_that_steers_the_loss_is_a_breach(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["check", f"{model}:build_curriculum"]) == 1
    ladder = capsys.readouterr().out
    assert verdicts(ladder)["replay"] == "equal"
    (last,) = [line for line in ladder.splitlines() if line.startswith("breach: ")]
    assert last.endswith("; without seen, which each rank's forward pass changes")


def verdicts(ladder: str) -> dict[str, str]:
    """The first word of each rung's verdict."""
    return {words[0]: words[1] for words in map(str.split, ladder.splitlines()[:-2])}


def test_large_model_reads_short_lines_and_says_so(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # the model has 256 * 8 + 8 * 256 + 256 = 4352 parameters: 16 bytes of 8 lines
    monkeypatch.setattr("minitrain.check.text_batches.AFFORDED", 4352 * 8 * 16)
    assert run(["check", f"{model}:build"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.endswith(" s, 8 lines of at most 16 bytes: 0 million parameters")


@pytest.mark.parametrize(
    ("ends", "word"),
    [("raise ValueError('no')", "ValueError: no"), ("import sys; sys.exit(0)", "Exit")],
    ids=["raises", "exits"],
)
def test_factory_that_fails_is_no_proof(ends: str, word: str, tmp_path: Path) -> None:
    path = tmp_path / "failing.py"
    path.write_text(f"def build():\n    {ends}\n")
    with pytest.raises(UserError, match=f"^factory: .*{word}"):
        run(["check", f"{path}:build"])


def test_large_model_takes_two_steps_unless_told(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minitrain.check.text_batches.LARGE", 4351)
    assert run(["check", f"{model}:build"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.endswith(" s, 2 steps: 0 million parameters")
    factory = find(f"{model}:build", "MODEL")
    assert reading_for(factory, 8, None).steps == 2
    told = reading_for(factory, 8, 3)
    assert (told.steps, told.shortened) == (3, "")


@pytest.mark.parametrize("factory", [torch.nn.Linear(3, 2), 3])
def test_what_builds_no_model_is_left_to_the_check(factory: object) -> None:
    assert reading_for(factory, 8, None) == Reading()


def test_length_of_lines_by_hand() -> None:
    # 2^31 multiplications: 64 bytes of 8 lines for 2^22 parameters
    assert length_for(1 << 22, 8) == LONGEST
    assert length_for((1 << 22) + 1, 8) == LONGEST // 2
    assert length_for(124_000_000, 8) == SHORTEST


def test_lines_that_are_cut_short_are_of_unlike_length(tmp_path: Path) -> None:
    """Else a mean of means would be the mean, and no rung could tell."""
    path = tmp_path / "text.txt"
    path.write_bytes(b"abcdefghijkl\n" * 4)
    (batch,) = text_batches(path, 5, 1, longest=8)
    lengths = (batch["labels"] != PADDING).sum(1)
    assert lengths.tolist() == [8, 7, 6, 5, 8]


def test_model_whose_loss_is_no_mean_over_targets(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["check", f"{model}:build_wrong"]) == 1
    *_, verdict, took, hint = capsys.readouterr().out.splitlines()
    assert verdict.startswith("breach: witness_mean: the loss is no mean over the ")
    assert took.endswith(" s")
    assert hint == "--count NAME gives a count of yours"


def test_model_that_counts_its_calls_is_a_breach(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A replay calls one model for both ranks: from the fifth call on it differs."""
    assert run(["check", f"{model}:build_counting"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("breach: ") for line in lines)
    assert any(line.startswith("first difference: step 2") for line in lines)


def test_all_strategies(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = ("ddp", "invariant", "fsdp", "bf16_compress")
    monkeypatch.setattr(check, "STRATEGIES", few)
    own = ["--batches", f"{model}:batches", "--loss", f"{model}:loss"]
    assert run(["check", f"{model}:linear", *own, *ALL]) == 0
    printed = capsys.readouterr()
    told = "float64: 4 strategies, one after the other ...\n"
    assert printed.err.endswith(told)
    lines = printed.out.splitlines()
    said = dict(line.split(maxsplit=1) for line in lines[:-1])
    assert said["ddp"].startswith("proven: ")
    assert said["invariant"].startswith("proven: ")
    assert said["fsdp"].startswith("undecided: ")
    why = "does not promise to stay close to one process"
    end = f"; one process was not compared: bf16_compress {why}"
    assert said.pop("bf16_compress").endswith(end)
    silent = said.values()
    assert not any("one process" in line for line in silent)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["my_model.py"], "MODEL = 'my_model.py': must be FILE.py:NAME or module:NAME"),
        (["no.py:build"], "MODEL = 'no.py:build': no file no.py"),
        (["torch.nn:Identity"], "torch.nn: no file to read; --text or --batches names"),
        (
            ["my_model.py:bild"],
            "MODEL = 'my_model.py:bild': my_model.py has no bild (did you mean build?)",
        ),
        (
            ["my_modl.py:build"],
            "MODEL = 'my_modl.py:build': no file my_modl.py (did you mean "
            "my_model.py?)",
        ),
        (
            ["my_model.py:build", "--loss", "no_such_module:x"],
            "--loss = 'no_such_module:x': no_such_module: ModuleNotFoundError: ",
        ),
        (
            ["my_model.py:build", "--loss", "my_model.py:not_a_function"],
            "loss = 3: must be a function",
        ),
        (["my_model.py:build", "--text", "beside.py", "--steps", "1"], "steps = 1: "),
    ],
)
def test_mistakes_are_one_line(model: str, arguments: list[str], line: str) -> None:
    assert refusal(run, ["check", *arguments]).startswith(line)


OWN_BATCHES = ["--batches", "my_model.py:batches", "--loss", "my_model.py:loss"]


@pytest.mark.parametrize("own", [[], OWN_BATCHES], ids=["text", "batches"])
def test_function_of_the_pipeline_needs_another_beside_it(
    own: list[str], model: str
) -> None:
    assert refusal(run, ["check", f"{model}:of_the_pipeline", *own]) == (
        "MODEL = 'my_model.py:of_the_pipeline': check calls it without arguments, and "
        "of_the_pipeline() needs 'model' and 'vocab_size'; beside the build(model, "
        "vocab_size) of the pipeline write a function like alone(), see "
        "docs/how-to/own-model.md"
    )


def test_mistake_within_the_function_is_its_own(model: str) -> None:
    line = refusal(run, ["check", f"{model}:build_from_nothing"])
    assert line.startswith("factory: TypeError: of_the_pipeline() missing 2 required ")


def test_strategy_that_takes_no_such_model_is_named() -> None:
    found = Climbed(refused={"shm": "not on two hosts"})
    assert not found.holds
    assert in_words(found, 2.4) == "shm  not tried: not on two hosts\n2 s"


def test_file_that_fails(model: str) -> None:
    Path("broken.py").write_text("import sys; sys.exit(3)")
    line = refusal(find, "broken.py:build", "MODEL")
    assert line == "MODEL = 'broken.py:build': broken.py: SystemExit: 3"
    assert refusal(find, "gone.py:build", "MODEL") == (
        "MODEL = 'gone.py:build': no file gone.py"
    )


def test_batches_of_a_text_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(b"ab\n\nc\nxyz\n" + b"q" * 100)
    first, second = text_batches(path, 2, 2)
    assert first["input_ids"].tolist() == [[97, 98, 0], [120, 121, 122]]
    assert first["labels"].tolist() == [[97, 98, PADDING], [120, 121, 122]]
    # a line is cut, and after the last one comes the first
    assert second["input_ids"].shape == (2, LONGEST)
    assert second["labels"][1].tolist() == [97, 98] + [PADDING] * (LONGEST - 2)
    assert second["labels"].dtype == torch.long


def test_text_without_a_line(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("a\nb\n")
    line = refusal(text_batches, tmp_path / "text.txt", 2, 2)
    assert line == f"{tmp_path / 'text.txt'}: has no line of two bytes"
