"""The doctor: right about this build, and about every fault that is injected in it."""

import json
import os
from collections.abc import Callable
from dataclasses import asdict
from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist
from commands import output_of

from minitrain.cli import collectives, doctor
from minitrain.cli.collectives import DTYPES, OPS, Member, Probe
from minitrain.cli.doctor import examine, in_words
from minitrain.comm.groups import distributed
from minitrain.core.errors import RankError, UserError

pytestmark = pytest.mark.slow

# gloo carries and reduces these in every build
CARRIED = {"float32", "float64", "float16", "bfloat16", "int64", "int32", "int8"}
CARRIED |= {"uint8", "bool"}
FLOATING = {"float32", "float64", "float16", "bfloat16", "float8_e4m3fn"}


def test_no_probe_of_this_build_is_wrong() -> None:
    found = examine()
    # 4 reducing calls x 5 operations and 7 moving calls, 12 types, 3 world sizes
    assert len(found) == (4 * 5 + 7) * 12 * 3
    assert {probe.world_size for probe in found} == {2, 3, 4}
    right = {probe for probe in found if probe.verdict == "right"}
    for probe in found:
        averaged = probe.op == "avg" and probe.dtype not in {*FLOATING, "complex64"}
        if probe.dtype in CARRIED and not averaged:
            assert probe in right, probe
        elif probe not in right:
            assert probe.verdict == "unsupported", probe
            assert probe.detail
    assert "unsupported" in in_words(found)


def test_known_answers_fit_their_type() -> None:
    """And tell sum, product, minimum and maximum from what a rank sent itself."""
    for size, op, dtype in product([2, 3, 4], OPS, DTYPES):
        case = (size, op, dtype)
        member = Member(0, size, dtype, op)
        if dtype.is_complex and op in ("min", "max"):
            with pytest.raises(TypeError):
                member.reduced()
            continue
        answers, sent = member.reduced(), [*map(member.sent, range(size))]
        for values in (answers, *sent):
            assert torch.tensor(values, dtype=dtype).tolist() == values, case
        assert answers not in sent, case


def average_that_is_a_sum() -> None:
    """A bug that gloo had: reduce-scatter with AVG returned the sum."""
    right = dist.reduce_scatter_tensor

    def wrong(output, sent, op, group):
        right(output, sent, dist.ReduceOp.SUM if op == dist.ReduceOp.AVG else op, group)

    dist.reduce_scatter_tensor = wrong


def no_bfloat16() -> None:
    right = dist.all_reduce

    def refuse(tensor, *rest, **options):
        if tensor.dtype == torch.bfloat16:
            raise RuntimeError("Invalid scalar type\nat some line")
        right(tensor, *rest, **options)

    dist.all_reduce = refuse


def one_rank_of_four_gathers_in_another_order() -> None:
    right = dist.all_gather

    def wrong(got, sent, group):
        right(got, sent, group=group)
        if dist.get_rank() == 3:
            got.reverse()

    dist.all_gather = wrong


WRONG = [
    "wrong: reduce_scatter_tensor avg of float32, float64, float16, bfloat16, "
    "int64, int32, int8, uint8, complex64 at 2, 3, 4 ranks: rank 0 got "
    "[12.0, 36.0, 24.0] instead of [6.0, 18.0, 12.0]",
    "wrong: all_gather of float32, float64, float16, bfloat16, int64, int32, int8, "
    "uint8, bool, complex64 at 4 ranks: rank 3 got [4.0, 5.0, 1.0, 3.0, 4.0, 5.0, "
    "2.0, 3.0, 4.0, 1.0, 2.0, 3.0] instead of [1, 2, 3, 2, 3, 4, 3, 4, 5, 4, 5, 1]",
]
UNSUPPORTED = (
    "unsupported: all_reduce sum of bfloat16, int16, float8_e4m3fn at 2, 3, 4 "
    "ranks: Invalid scalar type"
)


def examined_with(fault: Callable[[], None]) -> list[Probe]:
    """What the doctor finds if every rank first has the fault."""
    probe = doctor._probe

    def faulty() -> Any:
        fault()
        return probe()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(doctor, "_probe", faulty)
        return examine()


def test_planted_collectives_are_named() -> None:
    def both() -> None:
        average_that_is_a_sum()
        one_rank_of_four_gathers_in_another_order()

    lines = in_words(examined_with(both)).splitlines()
    assert [line for line in lines if line.startswith("wrong: ")] == WRONG
    # a type that a build refuses is not wrong
    found = examined_with(no_bfloat16)
    assert "wrong" not in {probe.verdict for probe in found}
    assert UNSUPPORTED in in_words(found).splitlines()


def test_rank_that_dies_is_named() -> None:
    with pytest.raises(RankError, match=r"rank 2 \(.*: exited with code 3"):
        examined_with(lambda: os._exit(3) if os.environ["RANK"] == "2" else None)


def test_rank_that_does_not_answer_makes_nothing_unsupported(monkeypatch) -> None:
    def wait(*_: object) -> None:
        raise RuntimeError("Timed out waiting 10000ms for recv operation to complete")

    monkeypatch.setattr(collectives, "_call", wait)
    with distributed(), pytest.raises(RuntimeError, match="Timed out"):
        list(collectives.probe_all(None))


def test_command_prints_json_and_has_an_exit_code(monkeypatch) -> None:
    wrong = Probe("all_reduce", "sum", "int8", 2, "wrong", "rank 1 got 0")
    monkeypatch.setattr(doctor, "examine", lambda: [wrong])
    code, text = output_of("doctor", "--json")
    found = json.loads(text)
    assert (code, found["ok"]) == (1, False)
    assert found["probes"] == [asdict(wrong)]
    assert found["machine"]["network of a host's ranks"].startswith("lo")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo,nowhere0")
    with pytest.raises(UserError, match="GLOO_SOCKET_IFNAME = 'nowhere0': must be one"):
        output_of("doctor")
