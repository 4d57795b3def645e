"""The result of a comparison: the first difference, and its probable cause.

The value of each cause is a sentence with placeholders; commands that print the cause,
such as ``verify`` and ``check``, fill in the facts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Any

from minitrain.recording.alarm import SYMPTOM, in_ranks

# the step of a difference before the first step
START = -1


class What(StrEnum):
    """Kinds of things that differ."""

    MODEL = "model"
    START = "start weights"
    DATA = "data"
    OWN = "own gradients"
    GRADIENTS = "gradients"
    RATE = "learning rate"
    SETTINGS = "optimizer settings"
    PARAMETERS = "parameters"
    BUFFERS = "buffers"
    STATE = "optimizer state"
    ALSO = "beside the model"


class Cause(Enum):
    """A probable cause; the value is its sentence, with facts in braces to fill in."""

    UNKNOWN = "unknown"

    MODEL = "another model"
    TIED = "{tensor} is tied to {other} in {side} alone"
    SEED = "another seed, or another checkpoint (one kept in 16 bits?)"
    PASSED_OVER = (
        "another checkpoint, or {side} resumes the other run between its recorded "
        "steps {first} and {last} (record with every=1 to decide)"
    )
    OTHER_START = "other weights before the step"
    NOT_BROADCAST = "other start weights on {ranks}: rank 0's were not broadcast"

    LABELS = "the labels are others, and the inputs the same"
    NO_SAMPLER = "all ranks of {side} read the same samples: no sampler of their own"
    REPEATED = "{count} samples of {side} are duplicated: read again (padding?)"
    BATCH_AGAIN = "{side} reads the batch of step {step} again: no new order?"
    BATCH_SIZE = "another batch size"
    ORDER = "another order of the samples (seed?), or other inputs of the model"
    SAMPLES = "other samples are read by {who}"
    PADDED = "the gradients agree: the same samples, padded or passed otherwise?"
    POSITION_LOST = "the position in the data, or its order, was not restored"
    SAMPLER_LOST = (
        "{side} reads the batch of step {step} of {other}: the sampler's position or "
        "epoch (set_epoch) was not restored"
    )
    SCHEDULE = "another schedule, or other groups of parameters"
    RATE_MULTIPLIED = "{side}'s learning rate is multiplied by the number of processes"
    RATE_DIVIDED = "{side}'s learning rate is divided by the number of processes"
    STEPS = "{side}'s steps are {factor:.3g} times as long: another learning rate"
    SETTING = "the optimizer is made otherwise, or has other groups of parameters"
    OPTIMIZER = "another optimizer, another setting, or another state (not restored?)"
    OPTIMIZER_LOST = "the optimizer's state was not restored"
    SCHEDULER_LOST = "the learning rate scheduler was not restored"
    SCALER_LOST = "the loss scale (GradScaler) was not restored"
    NO_STEP = (
        "forward passes came before the first step: the loss scale (GradScaler) or the "
        "position in the data was not restored"
    )
    RANDOM_LOST = "the random state of {ranks} was not restored"
    BUFFERS_LOST = "the model's buffers (running means?) were not restored"
    ALSO_LOST = "{tensor} was not restored"
    STANDS = "{tensor} does not move in {side}"
    HIDDEN = "rounding alone takes the twin as far: a fault could hide"

    NO_GRADIENT = "{tensor} has no gradient in {where}"
    NOT_FINITE = "not finite in {side}"
    KEPT = "{side}: the gradients of the step before are still in them: no zero_grad()"
    DRAWN = "the forward pass draws random numbers (dropout?), others on other ranks"
    RANDOM = "the random numbers of {ranks} are others: another seed, or kind of device"
    OWN_SCALED = "{factor:.3g} times as large before any reduction: a scaled loss"
    PASS = "these ranks' forward or backward pass is another one (labels, loss, model)"
    SUMMED = "{factor:.3g} times {of}: summed instead of averaged in {side}"
    AVERAGED_TWICE = (
        "{factor:.3g} times {of}: divided by the number of processes twice in {side}"
    )
    SCALED = (
        "{factor:.3g} times {of}: a scaled loss (a loss scale left on?), or clipped to "
        "another norm"
    )
    MISSING = "{side}: the gradient of {ranks} is missing from the sum"
    KEEPS_OWN = "{side}: {ranks} keeps its own gradient: not synchronized"
    KEEP_OWN = "ranks that keep their own gradients: {ranks}"
    ALONE = "{ranks} only: not synchronized, or other weights"
    MEANS = "{side}: a mean of means: each rank counts the same, whatever its targets"
    MEANS_OF_PASSES = (
        "{side}: a mean of micro-batch means (divide by the targets of all passes and "
        "ranks)"
    )
    WEIGHTS = "{side}: the ranks count otherwise than in the other run"
    REDUCED = "{side}: reduced in lower precision ({dtype})"
    LOWER = "computed in lower precision? (a gap of bfloat16, float16 or TF32)"
    ROUNDING = "rounding only: another order of summation, or other threads"
    BETWEEN = "the weights part at a step between (every=1 finds it)"
    FEW = "{few} of {num} tensors alone"
    BATCH_NORM = "each rank may normalize by its own samples (batch norm?)"
    PUT_TOGETHER = "the ranks' own gradients are alike: put together otherwise"
    NOT_A_MEAN = (
        "another loss, or the loss is not a mean over samples: ranks see fewer "
        "negatives (contrastive) or gather them without gradients"
    )

    BUFFERS_NOT_BROADCAST = "rank 0's buffers are not broadcast before the forward pass"
    # nothing shows whether such a buffer is wrong
    UNREAD = "what training need not read (a running mean, a count?) goes otherwise"


# the page on the symptom of a cause, if there is one
PAGES = {
    Cause[name]: SYMPTOM.format(page)
    for page, names in {
        "accumulation": "KEPT OWN_SCALED SCALED MEANS_OF_PASSES",
        "expected-to-have-finished-reduction": "NO_GRADIENT",
        "identical-runs-differ": "SEED ORDER RANDOM ROUNDING",
        "loss-after-resume": "PASSED_OVER POSITION_LOST SAMPLER_LOST OPTIMIZER_LOST "
        "SCHEDULER_LOST SCALER_LOST NO_STEP RANDOM_LOST BUFFERS_LOST ALSO_LOST",
        "loss-differs": "NO_SAMPLER REPEATED BATCH_SIZE SAMPLES RATE_MULTIPLIED "
        "RATE_DIVIDED SUMMED AVERAGED_TWICE MISSING KEEPS_OWN KEEP_OWN ALONE MEANS "
        "WEIGHTS BATCH_NORM NOT_BROADCAST BUFFERS_NOT_BROADCAST",
        "nan": "NOT_FINITE",
    }.items()
    for name in names.split()
}

# causes found by patterns that rounding does not make
OF_PATTERNS = (
    "NO_GRADIENT NOT_FINITE KEPT RANDOM ALONE OWN_SCALED SCALED SUMMED AVERAGED_TWICE "
    "MISSING MEANS MEANS_OF_PASSES WEIGHTS REDUCED KEEPS_OWN STANDS STEPS "
    "RATE_MULTIPLIED RATE_DIVIDED OTHER_START SCALER_LOST RANDOM_LOST BUFFERS_LOST"
)
SURE = {Cause[name] for name in OF_PATTERNS.split()}


@dataclass(frozen=True)
class Why:
    """A cause with the ``facts`` for its sentence. ``same_samples``: the gradient is a
    combination of gradients of the other run, so both runs read the same samples.
    ``own``: the ranks whose own gradients differ, before any reduction.
    """

    cause: Cause
    facts: Mapping[str, Any] = field(default_factory=dict)
    same_samples: bool = False
    own: tuple[int, ...] = ()

    @property
    def sure(self) -> bool:
        """Return whether rounding cannot be the cause."""
        return self.cause in SURE

    def __str__(self) -> str:
        facts = {
            name: in_ranks(fact) if isinstance(fact, list | tuple) else fact
            for name, fact in self.facts.items()
        }
        return self.cause.value.format(**facts)


def why(cause: Cause, **facts: Any) -> Why:
    """Return a Why: ``cause`` with ``facts`` for the braces in its sentence."""
    return Why(cause, facts)


UNKNOWN = Why(Cause.UNKNOWN)


@dataclass(frozen=True)
class Difference:
    """A difference: ``what`` differs (``much``: by how much, as text), and its
    cause ``why``; not ``sure`` if rounding might explain it.

    ``step``: START before the first. ``ranks``: the ranks that differ, empty for all,
    of run ``of`` if world sizes differ. ``since``: the previous recorded step.
    ``onwards``: it holds for later steps; ``end``: final states differ;
    ``twin_decides``: a twin of A (run from weights one rounding unit away) would show
    if it is rounding.
    """

    step: int
    what: What
    why: Why = UNKNOWN
    much: str = ""
    tensor: str = ""
    ranks: tuple[int, ...] = ()
    of: str = ""
    sure: bool = True
    since: int | None = None
    optimizer: int = 0
    onwards: bool = False
    end: bool = False
    twin_decides: bool = False

    @property
    def cause(self) -> str:
        """Return the sentence of the cause."""
        return str(self.why)

    @property
    def where(self) -> str:
        """Return as text the step, the kind of thing, the tensor and the ranks."""
        text = "the start" if self.step == START else f"step {self.step}"
        if self.end:
            text = f"the end, after step {self.step}"
        if self.optimizer:
            text += f" of optimizer {self.optimizer}"
        text += f"{' on' if self.onwards else ''}: {self.what}"
        if self.tensor:
            text += f", tensor {self.tensor}"
        if self.ranks:
            text += f", {in_ranks(self.ranks)}{f' of {self.of}' if self.of else ''}"
        return text

    def __str__(self) -> str:
        text = f"{self.where}: {self.much}" if self.much else self.where
        if self.since is not None and self.since + 1 < self.step:
            text += f" (the recorded step before is {self.since})"
        return f"{text}; probable cause: {self.cause}"

    def facts(self) -> dict[str, Any]:
        """Return the fields for JSON, with the name and the sentence of the cause."""
        return {**vars(self), "why": self.why.cause.name, "cause": self.cause}
