"""The doctor: right about this build, and about every fault that is injected in it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from commands import output_of
from project import ROOT

from minitrain.cli import collectives, doctor
from minitrain.cli.collectives import DTYPES, OPS, Member, Probe, worst
from minitrain.cli.doctor import Check, Examination, examine, in_words
from minitrain.comm.groups import distributed

pytestmark = pytest.mark.slow

# gloo carries and reduces these in every build
CARRIED = {"float32", "float64", "float16", "bfloat16", "int64", "int32", "int8"}
CARRIED |= {"uint8", "bool"}
FLOATING = {"float32", "float64", "float16", "bfloat16", "float8_e4m3fn"}


def test_no_probe_of_this_build_is_wrong() -> None:
    found = examine()
    assert found.ok
    # 4 reducing calls x 5 operations and 7 moving calls, 12 types, 3 world sizes
    assert len(found.probes) == (4 * 5 + 7) * 12 * 3
    assert {probe.world_size for probe in found.probes} == {2, 3, 4}
    right = {probe for probe in found.probes if probe.verdict == "right"}
    for probe in found.probes:
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


def test_gravest_of_the_ranks_counts() -> None:
    right = Probe("all_reduce", "sum", "int8", 2, "right", "")
    unsupported = replace(right, verdict="unsupported", detail="no")
    wrong = replace(right, verdict="wrong", detail="rank 1 got 0")
    assert worst([right, wrong, unsupported]) is wrong
    assert worst([right, unsupported]) is unsupported


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


def examined_with(fault: Callable[[], None]) -> Examination:
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

    found = examined_with(both)
    assert not found.ok
    lines = in_words(found).splitlines()
    assert [line for line in lines if line.startswith("wrong: ")] == WRONG
    # a type that a build refuses is not wrong
    found = examined_with(no_bfloat16)
    assert found.ok
    assert UNSUPPORTED in in_words(found).splitlines()


def test_rank_that_dies_is_named() -> None:
    found = examined_with(lambda: os._exit(3) if os.environ["RANK"] == "2" else None)
    assert not found.ok
    detail = found.checks[-1].detail
    assert detail.startswith("the ranks failed: rank 2 (")
    assert detail.endswith("): exited with code 3")
    assert "wrong   collectives" in in_words(found)
    # nothing probed is nothing well
    assert not Examination([Check("torch", "fine", "")], []).ok


def test_rank_that_does_not_answer_makes_nothing_unsupported(monkeypatch) -> None:
    def wait(*_: object) -> None:
        raise RuntimeError("Timed out waiting 10000ms for recv operation to complete")

    monkeypatch.setattr(collectives, "_call", wait)
    with distributed(), pytest.raises(RuntimeError, match="Timed out"):
        list(collectives.probe_all(None))


def test_interface_that_is_not_there_and_more_threads_than_cores(monkeypatch) -> None:
    assert doctor.check_interface().detail.startswith("ranks of one host talk over lo")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo,nowhere0")
    check = doctor.check_interface()
    assert check.verdict == "wrong"
    assert "GLOO_SOCKET_IFNAME = 'nowhere0': must be one of" in check.detail
    monkeypatch.setattr("torch.get_num_threads", lambda: 10_000)
    for asked, end in ((None, ", or N under torchrun, which sets 1"), ("10000", "")):
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        if asked:
            monkeypatch.setenv("OMP_NUM_THREADS", asked)
        check = doctor.check_threads()
        assert check.verdict == "trouble"
        assert check.detail.endswith(f"; N ranks use N x 10000 threads{end}")


def test_command_says_what_it_does_before_it_imports_torch(tmp_path: Path) -> None:
    """On a busy machine that import takes half a minute."""
    (tmp_path / "torch.py").write_text("import time\ntime.sleep(60)\n")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", "minitrain", "doctor"]
    process = subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr.readline().startswith("trying every collective")
    finally:
        process.kill()
        process.communicate()


def test_command_prints_json_and_has_an_exit_code(monkeypatch) -> None:
    ill = Examination([Check("ports", "wrong", "none is free")], [])
    monkeypatch.setattr(doctor, "examine", lambda: ill)
    code, text = output_of("doctor", "--json")
    assert code == 1
    assert json.loads(text) == {
        "ok": False,
        "checks": [{"name": "ports", "verdict": "wrong", "detail": "none is free"}],
        "probes": [],
    }
