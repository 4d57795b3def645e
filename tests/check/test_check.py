"""check_data_parallel: for models, batches and losses of one's own."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from subjects import make_run
from test_arguments import PAIRS, line, squares
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    checkpoint_wrapper,
)

from minitrain.check.data_parallel import check_data_parallel, examine
from minitrain.core.errors import EvidenceError
from minitrain.train.worker import Worker

pytestmark = pytest.mark.slow


def test_model_and_loss_of_ones_own() -> None:
    # the row of a column is one element with a stride that is not 1, and rows do not
    # divide by three: the weights make up for it
    table = torch.randn(8, 4)
    for batches, world_size in (([(table[:, :3], table[:, 3:])] * 3, 2), (PAIRS, 3)):
        ladder = check_data_parallel(line, batches, loss=squares, world_size=world_size)
        assert ladder.verdict == "proven"
        assert ladder.rungs["replay"].verdict == "equal"
        for name in ("one_process", "one_process_gradients"):
            assert ladder.rungs[name].verdict in ("equal", "within tolerance")


def test_commonest_loss_of_all() -> None:
    """It views logits and labels, which a strided cut of a batch would refuse."""

    def loss(model: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        return nn.functional.cross_entropy(model(x).view(-1, 5), y.view(-1))

    batches = [(torch.randint(7, (8, 3)), torch.randint(5, (8, 3))) for _ in range(3)]
    ladder = check_data_parallel(
        lambda: nn.Embedding(7, 5),
        batches,
        loss=loss,
        # it may be a tensor
        count=lambda batch: (batch[1] >= 0).sum(),
    )
    assert ladder.verdict == "proven"


class InBfloat16(nn.Linear):
    """Casts its float32 parameters: their last bits decide nothing."""

    def forward(self, inputs: Tensor) -> Tensor:
        weight, bias = self.weight.bfloat16(), self.bias.bfloat16()
        return nn.functional.linear(inputs.bfloat16(), weight, bias)


def casts() -> nn.Module:
    return nn.Sequential(InBfloat16(3, 16), nn.GELU(), InBfloat16(16, 1))


def squares_of_casts(model: nn.Module, batch: Any) -> Tensor:
    inputs, targets = batch
    return nn.functional.mse_loss(model(inputs).float(), targets)


def fifth_more(worker: Worker) -> None:
    right = worker.batches.loss
    worker.batches.loss = lambda model, batch: 1.2 * right(model, batch)  # type: ignore


def test_model_that_casts_is_compared_in_the_type_that_it_computes_in() -> None:
    ladder = check_data_parallel(casts, PAIRS, loss=squares_of_casts)
    assert ladder.verdict == "proven", str(ladder)
    rung = ladder.rungs["one_process_gradients"]
    assert rung.detail.startswith("rounding explains it"), rung
    trial = replace(make_run(), factory=casts)
    data = replace(trial.data, batches=PAIRS, loss=squares_of_casts)
    ladder = examine(replace(trial, data=data, steps=3), 2, fifth_more)
    assert "one_process_gradients" in ladder.breaches, str(ladder)


def test_one_batch_is_trained_twice() -> None:
    """With one step, no parameter changes between two recorded steps."""
    assert check_data_parallel(line, PAIRS[:1], loss=squares).verdict == "proven"


def recomputed() -> nn.Module:
    return nn.Sequential(checkpoint_wrapper(nn.Linear(3, 4)), nn.Linear(4, 1))


def test_parameter_with_another_name_in_the_state_is_replayed_only() -> None:
    accept: Any = ("replay only",)
    ladder = check_data_parallel(recomputed, PAIRS, loss=squares, accept=accept)
    assert ladder.rests_on.endswith(
        "parameter 0._checkpoint_wrapped_module.weight is not in state_dict, as the "
        "witness requires"
    )


def test_who_cannot_be_proven_is_told_how_to_go_on() -> None:
    with pytest.raises(EvidenceError, match=r"accept=\('proven', 'undecided'\) lets"):
        check_data_parallel(line, PAIRS, loss=squares, sync="fsdp")


class Gather(torch.autograd.Function):
    """The rows of all ranks; backward, the sum over ranks of what is this rank's."""

    @staticmethod
    def forward(ctx: Any, mine: Tensor) -> Tensor:
        every = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(every, mine.contiguous())
        return torch.cat(every)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (gradient,) = gradients
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient.chunk(dist.get_world_size())[dist.get_rank()]


def gathered(mine: Tensor) -> Tensor:
    every: Tensor = Gather.apply(mine)
    return every


def gathered_with_functional(mine: Tensor) -> Tensor:
    group = dist.group.WORLD
    return functional.all_gather_single_autograd(mine.contiguous(), 0, group)


def own_part_put_back(mine: Tensor) -> Tensor:
    """Without a gradient through the rows of other ranks."""
    rank, every = dist.get_rank(), gathered(mine.detach())
    before, after = rank * len(mine), (rank + 1) * len(mine)
    return torch.cat([every[:before], mine, every[after:]])


def contrastive(gather: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    """The loss of CLIP: each of a rank's rows against the columns of all ranks."""

    def loss(model: nn.Module, batch: Any) -> Tensor:
        a, b = nn.functional.normalize(model(batch), dim=1).chunk(2, 1)
        every_a, every_b = gather(a), gather(b)
        here = len(a) * dist.get_rank() if len(every_a) > len(a) else 0
        right = torch.arange(len(a)) + here
        entropy = nn.functional.cross_entropy
        return entropy(5 * a @ every_b.T, right) + entropy(5 * b @ every_a.T, right)

    return loss


class SharedNorm(nn.BatchNorm1d):
    """Batch norm by hand, with the statistics of all ranks."""

    sum_over_ranks = staticmethod(lambda x: gathered(x[None]).sum(0))

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        sums = self.sum_over_ranks(torch.stack([x.sum(0), x.square().sum(0)]))
        mean, square = sums / (len(x) * dist.get_world_size())
        self.running_mean.mul_(0.9).add_(0.1 * mean.detach())
        return (x - mean) * (square - mean.square() + self.eps).rsqrt()


class WithoutGradient(SharedNorm):
    sum_over_ranks = staticmethod(
        lambda x: x + (gathered(x.detach()[None]).sum(0) - x.detach())
    )


def normed(norm: type[nn.Module]) -> nn.Module:
    own = norm(4, affine=False)
    return nn.Sequential(nn.Linear(3, 4), own, nn.Tanh(), nn.Linear(4, 1))


TRIPLES = torch.randn(3, 12, 3, generator=torch.Generator().manual_seed(0))
# the collective goes through the whole batch, which one process computes as well
RIGHT = [
    (lambda: nn.Linear(3, 6), contrastive(gathered), 2),
    (lambda: nn.Linear(3, 6), contrastive(gathered_with_functional), 3),
    (lambda: normed(SharedNorm), lambda model, x: model(x).square().mean(), 2),
]
WRONG = [
    (lambda: nn.Linear(3, 6), contrastive(own_part_put_back)),
    (lambda: normed(WithoutGradient), lambda model, x: model(x).square().mean()),
]


def test_forward_pass_that_communicates_is_compared_with_one_process() -> None:
    for factory, loss, world_size in RIGHT:
        ladder = check_data_parallel(
            factory, TRIPLES, loss=loss, world_size=world_size, optimizer="sgd"
        )
        assert (ladder.verdict, ladder.holds) == ("undecided", True), str(ladder)
        assert ladder.communicates == ["all_gather"]
        assert ladder.rests_on == (
            "the forward pass communicates (all_gather), so ranks cannot be replayed; "
            "a witness agrees; one process agrees"
        )
        rungs = {name: rung.verdict for name, rung in ladder.rungs.items()}
        assert rungs["replay"] == rungs["witness_mean"] == "not run"
        assert {rungs["witness_probe"], rungs["witness_gradients"]} == {
            "within tolerance"
        }


def test_collective_without_gradient_is_a_breach() -> None:
    for factory, loss in WRONG:
        with pytest.raises(EvidenceError) as raised:
            check_data_parallel(factory, TRIPLES, loss=loss, optimizer="sgd")
        first = str(raised.value).splitlines()[0]
        assert first.startswith("breach: witness_gradients: step ")
        assert first.endswith(
            "; does its backward pass sum what each rank contributes?"
        )


def test_micro_batches_that_communicate_are_not_compared_with_one_process() -> None:
    ladder = check_data_parallel(
        lambda: nn.Linear(3, 6),
        TRIPLES,
        loss=contrastive(gathered),
        grad_accumulation_steps=2,
        accept=("undecided",),
    )
    assert not ladder.holds
    assert ladder.rungs["witness_gradients"].verdict == "within tolerance"
    assert ladder.rests_on.endswith("one micro-batch of each rank, not the batch")
