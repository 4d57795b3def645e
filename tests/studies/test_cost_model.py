"""Cost model: layers, channel, steps and crossovers by hand. That measurements of the
study `prediction` suffice to find its coefficients: tests/project/test_prediction.py.
"""

import math
from dataclasses import replace

import pytest
from cost_model import Compute, Machine, Overheads, channel, predict
from crossover import Crossover, crossover
from gpt_layers import features, gpt_layers, layers_of, num_parameters, num_tensors
from link_model import Line, Link
from setting import Setting

from minitrain.model.gpt import MiniGPT

# width 2, context of 4, vocabulary of 3
SMALL = Setting("ddp", 2, 1, 2, 1, block_size=4, vocab_size=3)
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


def test_layers_have_the_parameters_of_the_model() -> None:
    model = MiniGPT(vocab_size=256, block_size=64, n_layer=4, n_head=1, n_embd=128)
    sizes = sorted(p.numel() for p in model.parameters())
    layers = gpt_layers(4, 128, 64, 256)
    assert sorted(n for layer in layers for n in layer.parameters) == sizes
    assert num_parameters(layers) == sum(sizes)
    assert num_tensors(layers) == len(sizes)


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
    # three bytes pass at once after a pause: the second bucket starts when the first is
    # done, or when one more byte has been saved up
    link = Link((Line(0, 0, 1.0),), burst_bytes=3)
    for ready, exposed in (([10], 1), ([10, 10], 5), ([10, 12], 3)):
        assert channel(ready, [4] * len(ready), link, 2) == pytest.approx(exposed)


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
    # float16 sends half, and is paid for
    machine = Machine(2, COSTS, overheads=Overheads(cast=0.01))
    half = predict(replace(SMALL, sync="fp16_compress"), machine, link)
    assert half.interference == pytest.approx(3.68)
    assert half.exposed == pytest.approx(0.5 + 0.184)


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


def test_crossover_is_where_algebra_says() -> None:
    # one takes 10, the other x: equal at 10; uncertain within a factor of 2
    found = crossover(lambda x: math.log(x / 10), 1, 1000, math.log(2))
    assert found == Crossover(
        pytest.approx(10), pytest.approx(5), pytest.approx(20), True
    )
    # unsure up to the end: open
    found = crossover(lambda x: math.log(x / 10), 4, 100, math.log(3))
    assert (found.low, found.high) == (None, pytest.approx(30))
    assert crossover(lambda x: x, 1, 10, 0.1) is None
    found = crossover(lambda x: -math.log(x / 900), 1, 1000, 0.1)
    assert (found.at, found.above) == (pytest.approx(900), False)
