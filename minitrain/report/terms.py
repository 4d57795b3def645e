"""What the words of the report mean, and how each is spelled where it is first used."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Term:
    """An entry of the glossary; sentences that use one of ``spellings`` link to it."""

    name: str
    meaning: str
    spellings: tuple[str, ...] = ()

    @property
    def anchor(self) -> str:
        """Its name in the address of a link."""
        words = re.findall("[a-z0-9]+", self.name.lower())
        return f"term-{'-'.join(words)}"


TERMS = (
    Term(
        "Parameters",
        "The numbers that a model consists of. Training changes them; the state of a "
        "model is all of them.",
        ("parameters",),
    ),
    Term(
        "Step, batch",
        "A batch is the samples that are looked at together. Reading one and moving "
        "the parameters once is a step.",
        ("batch", "batches", "step", "steps"),
    ),
    Term(
        "Loss",
        "How badly the model predicts the next token: minus the natural logarithm of "
        "the probability that it gave to the right one, in the mean (nats).",
        ("loss", "losses"),
    ),
    Term(
        "Gradients",
        "How the loss changes with each parameter: which way to move it, and how much "
        "that matters.",
        ("gradients",),
    ),
    Term(
        "Data-parallel training (DDP)",
        "Every process holds a copy of the model and computes gradients on its part of "
        "the batch; all average their gradients, and each takes the same step. DDP is "
        "PyTorch's implementation.",
        ("data-parallel training", "data-parallel", "DDP"),
    ),
    Term(
        "Rank, world size",
        "The number of a process, from 0, and how many there are.",
        ("rank", "ranks"),
    ),
    Term(
        "Shard",
        "The samples that one rank reads: sample i belongs to the rank that is left "
        "over when i is divided by the number of ranks.",
        ("shard", "shards"),
    ),
    Term(
        "gloo, nccl",
        "Libraries that carry the data: between CPUs, and between GPUs. gloo-2 is the "
        "run of two processes that used gloo.",
        ("gloo", "nccl"),
    ),
    Term(
        "All-reduce",
        "Adding up numbers over all ranks so that each gets the sum. Its time in a "
        "step reaches from handing gradients over until they are reduced: it holds "
        "waiting for the other ranks, and for a core.",
        ("all-reduce", "all-reduces"),
    ),
    Term(
        "Tokens per second",
        "Bytes of text learned from in a second, over all ranks, without padding.",
        ("tokens per second",),
    ),
    Term(
        "p5, p50, p95",
        "5, 50 (the median) or 95 % of the measured values lie below this one.",
        ("median", "medians"),
    ),
    Term(
        "Noise floor",
        "Identical arms, measured in turns, differ a little (A/A). The largest "
        "difference among the pairs of this run is the floor: one below it is not "
        "worth reporting. In another run identical arms may differ by more.",
        ("noise floor",),
    ),
    Term(
        "5-95 % interval",
        "Where the figure falls in 90 % of the cases when it is computed again from "
        "values drawn at random from the measured ones (bootstrap).",
        ("5-95 % interval",),
    ),
    Term(
        "No communication (the ceiling)",
        "The same processes side by side, each on its own: what DDP reaches at best.",
        ("ceiling",),
    ),
    Term(
        "Replay",
        "One process that computes the ranks' shards one after the other and adds the "
        "gradients in the order in which the ranks did.",
        ("replay",),
    ),
    Term(
        "Witness",
        "A small computation that shares no code with the run: it reads the text and "
        "the parameters itself, and works out in float64 which samples form a batch, "
        "their loss, its gradient and the optimizer's step.",
        ("witness",),
    ),
    Term(
        "Proven, replay only, undecided, breach",
        "The verdict on a run. Proven: it has the bits of its replay, and the witness "
        "agrees. Replay only: it has these bits, but what run and replay share nobody "
        "else has computed. Undecided: its bits were not promised or not compared. "
        "Breach: some comparison says no.",
        ("verdict", "proven", "replay only", "undecided", "breach"),
    ),
    Term(
        "ULP",
        "Unit in the last place: how many steps from one representable number to the "
        "next lie between two values. 0 means the same number.",
        ("ULP",),
    ),
    Term(
        "Within tolerance",
        "Not the same bits: the same sums in another order or precision, so that "
        "rounding differs. The limit is set from how far rounding alone goes.",
        ("within tolerance", "within their tolerance"),
    ),
    Term(
        "SHA-256",
        "A fingerprint of a file in 64 digits, of which tables show 16: who changes "
        "one bit of the file gets another.",
        ("SHA-256",),
    ),
    Term(
        "Data, wait",
        "Getting the next batch ready; waiting for the slowest rank. Where there is "
        "one rank, wait is what a barrier itself costs.",
        ("wait",),
    ),
    Term(
        "Straggler",
        "A rank that needs longer than the others for its own work, which is what it "
        "does before it has to wait for anybody. All wait for it, so a step takes as "
        "long as it does.",
        ("straggler", "stragglers"),
    ),
    Term(
        "Interference",
        "How much longer computing the gradients takes while they are being sent: a "
        "difference of two measurements, which noise can push below zero.",
        ("interference",),
    ),
    Term(
        "Exposed communication",
        "Communication that remains after the last gradient is computed, so that "
        "nothing hides it.",
        ("exposed communication",),
    ),
    Term(
        "Account",
        "Where the time of a step goes, part by part. The parts were measured with "
        "instruments; they explain something where their sum is within 5 % of a step "
        "without any.",
        ("account",),
    ),
)


def anchors() -> dict[str, str]:
    """The anchor of every spelling, in small letters."""
    return {
        spelling.lower(): term.anchor for term in TERMS for spelling in term.spellings
    }
