"""Cost model: layers, channel and steps by hand, and recovery of known coefficients.
Uses the settings of the study `prediction`: its measurements must suffice to find all
coefficients, and to detect a law other than the model's.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from cost_model import Compute, Machine, Overheads, channel, predict, ready_at
from fit_costs import Measured, fit_machine
from gpt_layers import (
    Bucket,
    buckets,
    features,
    gpt_layers,
    layers_of,
    num_parameters,
    num_tensors,
)
from held_out import Errors, errors
from link_model import Line, Link
from planted import MACHINE as PLANTED
from planted import NETWORK, step_of
from project import PARAMS_FILE, ROOT
from ruamel.yaml import YAML
from setting import NO_SYNC, Setting, setting_of

from minitrain.core.errors import UserError
from minitrain.data.text import VOCAB_SIZE
from minitrain.model.gpt import MiniGPT

# width 2, context of 4, vocabulary of 3
SMALL = Setting("ddp", 2, 1, 2, 1, block_size=4, vocab_size=3)
# the pipeline's model
LAYERS = gpt_layers(4, 128, 64, 256)
SECOND_A_BYTE = Link.of(0, 1.0)


def test_layers_by_hand() -> None:
    found = layers_of(SMALL)
    assert [sum(layer.parameters) for layer in found] == [
        *(3 * 2, 2 + 2),
        *(2 + 16, 8 + 16, 2 + 2, 2 + 4, 0, 12, 2 + 2),
        4 * 2 + 3 * 2,
    ]
    # 2 for each multiplication: logits 6, mlp 16 and 16, proj 4, attention 2 x 4 x 2,
    # qkv 12; times 4 tokens
    flops, elements, parameters, calls = features(found, 4).sum(axis=0)
    assert flops == 4 * 2 * (6 + 16 + 16 + 4 + 16 + 12)
    # logits and softmax 6, three norms 2 each; 4, 16, 6, 2, 6; embedding 6
    assert elements == 4 * (6 + 3 * 2 + 4 + 16 + 6 + 2 + 6 + 6)
    assert parameters == num_parameters(found)
    assert calls == 4 + 3 * 1 + 2 + 2 + 3 + 1 + 1 + 3


@pytest.mark.parametrize("shape", [(1, 2, 4, 3), (4, 128, 64, 256), (2, 48, 16, 100)])
def test_layers_have_the_parameters_of_the_model(shape: tuple[int, ...]) -> None:
    n_layer, n_embd, block_size, vocab_size = shape
    model = MiniGPT(vocab_size, block_size, n_layer, 1, n_embd)
    sizes = sorted(p.numel() for p in model.parameters())
    layers = gpt_layers(n_layer, n_embd, block_size, vocab_size)
    assert sorted(n for layer in layers for n in layer.parameters) == sizes
    assert num_parameters(layers) == sum(sizes)
    assert num_tensors(layers) == len(sizes)

    # and settings have the sizes of the lab
    params = YAML(typ="safe").load(PARAMS_FILE.read_text())["model"]
    assert Setting("none", 1, 1, 8, 1).vocab_size == VOCAB_SIZE
    assert Setting("none", 1, 1, 8, 1).block_size == params["block_size"]


def test_buckets_by_hand() -> None:
    # bytes: head 131072; norm and mlp.2 263680; mlp.0 264192; norm and proj 67072;
    # qkv 196608; the last norm with both embeddings 164864
    block = [263680, 264192, 67072, 196608]
    small = buckets(LAYERS, 0.05)
    assert [b.num_bytes for b in small] == [131072, *block * 4, 164864]
    # head, a block and norm with mlp.2 make the first MiB
    default = buckets(LAYERS, None)
    first = 131072 + sum(block) + 263680
    assert [b.num_bytes for b in default] == [
        first,
        131072 + 4 * sum(block) + 164864 - first,
    ]
    # after norm and mlp.2 of the second block from the end: head, norm, 7 layers, 1
    assert [b.after for b in default] == [9, len(LAYERS) - 1]
    (one,) = buckets(LAYERS, 25)
    assert one == Bucket(3462144, len(LAYERS) - 1)


def test_channel_by_hand() -> None:
    # a byte takes a second on two ranks
    for ready, num_bytes, exposed in [
        # no overlap: no computation is left
        ([10], [4], 4),
        ([10, 10, 10], [2, 2, 2], 6),
        # the first is done at 6: hidden
        ([2, 10], [4, 4], 4),
        # the second waits for the first until 12
        ([8, 10], [4, 4], 6),
        # and the third for both until 14
        ([1, 5, 6], [6, 7, 3], 11),
    ]:
        assert channel(ready, num_bytes, SECOND_A_BYTE, 2) == pytest.approx(exposed)


def test_channel_gives_a_burst_to_whom_waited() -> None:
    link = Link((Line(0, 0, 1.0),), burst_bytes=3)
    # 4 bytes: one second after a pause
    assert channel([10], [4], link, 2) == pytest.approx(1)
    # the second starts immediately when the first is done at 11: no tokens are left
    assert channel([10, 10], [4, 4], link, 2) == pytest.approx(5)
    # at 12 there is one
    assert channel([10, 12], [4, 4], link, 2) == pytest.approx(3)


def test_buckets_delay_what_is_computed_after_them() -> None:
    handed_over = [Bucket(4, 0), Bucket(4, 2), Bucket(4, 3)]
    layers, delays = np.array([1.0, 2, 3, 4]), np.array([0.5, 0.25, 0])
    assert ready_at(handed_over, layers, delays) == pytest.approx([1, 6.5, 10.75])


COSTS = Compute(
    forward=(0.001, 0, 0, 0),
    backward=(0.002, 0, 0, 0),
    optimizer=(0.01, 0),
    data=(0.1, 0),
)


def test_step_by_hand() -> None:
    # 560 flops, 92 parameters, 368 bytes in one bucket; all 1.5 times as long
    on = Overheads(step=0.1, straggle=0.02, byte=0.001)
    machine = Machine(2, COSTS, contention=1.5, overheads=on)
    step = predict(SMALL, machine, Link.of(0.25, 0.001))
    assert step.data == pytest.approx(1.5 * 0.1)
    assert step.forward == pytest.approx(1.5 * 0.56)
    assert step.backward == pytest.approx(1.5 * 1.12)
    assert step.optimizer == pytest.approx(1.5 * 0.92)
    computing = 1.5 * (0.1 + 0.56 + 1.12 + 0.92)
    assert step.interference == pytest.approx(1.5 * 0.468 + 0.02 * computing)
    assert step.exposed == pytest.approx(2 * 0.25 + 0.368)
    assert step.seconds == pytest.approx(computing + step.interference + step.exposed)
    # without communication only computation is left
    machine = Machine(2, COSTS, overheads=Overheads(step=9, crowd=9))
    assert predict(SMALL.silent, machine).seconds == pytest.approx(2.7)
    # several micro-batches send once
    twice = replace(SMALL, samples=2, micro_batches=2)
    machine, link = Machine(2, COSTS), Link.of(0.25, 0.001)
    one, two = (predict(setting, machine, link) for setting in (SMALL, twice))
    assert (two.forward, two.backward) == pytest.approx((2 * 0.56, 2 * 1.12))
    assert two.exposed == pytest.approx(one.exposed)


def test_float16_sends_half_and_is_paid_for() -> None:
    half = replace(SMALL, sync="fp16_compress")
    machine = Machine(2, COSTS, overheads=Overheads(cast=0.01))
    link = Link.of(0.25, 0.001)
    assert predict(SMALL, machine, link).interference == 0
    step = predict(half, machine, link)
    assert step.interference == pytest.approx(3.68)
    assert step.exposed == pytest.approx(0.5 + 0.184)


def test_communication_delays_computing_where_no_core_is_idle() -> None:
    # caps of 24 bytes make nine buckets; no computation overlaps the last
    many = replace(SMALL, bucket_cap_mb=24 / 2**20)
    assert len(buckets(layers_of(many), many.bucket_cap_mb)) == 9
    on = Overheads(hidden_bucket=0.1)
    found = [
        predict(many, Machine(cores, COSTS, overheads=on), Link.of(0, 0)).interference
        for cores in (2, 3, 4)
    ]
    assert found == pytest.approx([0.8, 0.4, 0])


def test_slowdown_by_hand() -> None:
    machine = Machine(2, COSTS, contention=1.2, crowding=0.1)
    found = [machine.slowdown(n) for n in (1, 2, 3, 4)]
    assert found == pytest.approx([1, 1.2, 1.2 * 1.5 * 1.05, 1.2 * 2 * 1.1])
    four = Machine(4, COSTS, contention=1.3)
    assert [four.slowdown(n) for n in (2, 4)] == pytest.approx([1.1, 1.3])
    # one core has no contention
    assert Machine(1, COSTS, contention=9).slowdown(2) == pytest.approx(2)
    machine = Machine(2, COSTS, link_crowding=(3, 2))
    # half a rank more a core: half of what a whole one adds
    assert machine.link(Link.of(1, 1), 3).lines == (Line(0, 2, 1.5),)
    assert machine.link(Link.of(1, 1), 2).lines == (Line(0, 1, 1),)


STUDY = YAML(typ="safe").load((ROOT / "studies/prediction/params.yaml").read_text())
FIT, HELD_OUT = (
    [setting_of(row) for row in STUDY["prediction"][role]]
    for role in ("fit", "held_out")
)
Law = Callable[[Setting], float]


def seconds_of(setting: Setting, machine: Machine = PLANTED) -> float:
    return step_of(setting, machine).seconds


def measure(setting: Setting, law: Law, factor: float) -> Measured:
    if setting.processes > 1:
        return Measured(setting, law(setting) * factor)
    step = predict(setting, PLANTED)
    parts = step.data, step.forward, step.backward, step.optimizer
    more = law(setting) / step.seconds * factor
    return Measured(setting, law(setting) * factor, tuple(more * x for x in parts))


def held_out_errors(noise: float) -> Errors:
    """Fit the steps of the study's settings, and predict the others. Detection of a
    different law: tests/project/test_prediction.py.
    """
    factors = 1 + np.random.default_rng(7).uniform(-noise, noise, len(FIT))
    measured = [measure(s, seconds_of, f) for s, f in zip(FIT, factors, strict=True)]
    found = fit_machine(measured, NETWORK, 2, PLANTED.link_crowding)
    predicted = [seconds_of(setting, found) for setting in HELD_OUT]
    return errors(predicted, [seconds_of(setting) for setting in HELD_OUT])


def test_study_finds_the_planted_machine_also_through_noise() -> None:
    assert held_out_errors(0.0).worst < 1e-3
    found = held_out_errors(0.05)
    assert found.is_believed
    assert found.worst < 0.10


def test_a_fit_needs_a_process_that_is_alone() -> None:
    with pytest.raises(UserError, match="needs settings of one process"):
        fit_machine([Measured(FIT[-1], 1.0)], NETWORK, 2)


def test_more_cores_than_ranks_are_no_crowd() -> None:
    truth = replace(PLANTED, cores=4, crowding=0.0)
    measured = [
        replace(measure(s, lambda s: seconds_of(s, truth), 1.0))
        for s in FIT
        if s.sync == NO_SYNC
    ]
    found = fit_machine(measured, NETWORK, 4)
    assert found.crowding == 0
    assert found.contention == pytest.approx(1.1, rel=0.01)
    assert found.overheads == Overheads()
