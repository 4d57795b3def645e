"""The doctor: right about this build, and about every fault that is planted in it."""

import json
import os
import socket
from collections.abc import Callable

import pytest
import torch.distributed as dist

from minitrain.cli.checks import machine as doctor
from minitrain.cli.checks.machine import Check, Examination, examine
from minitrain.cli.doctor import in_words
from minitrain.cli.main import run


def test_every_probe_of_this_build_is_right() -> None:
    found = examine()
    assert found.well
    # 4 reducing calls x (5 operations x 4 floating types, 4 x 4 others), 7 moving
    # calls x 8 types, at 3 world sizes
    assert len(found.probes) == (4 * (5 * 4 + 4 * 4) + 7 * 8) * 3
    assert {probe.verdict for probe in found.probes} == {"right"}
    assert {probe.world_size for probe in found.probes} == {2, 3, 4}


def average_that_is_a_sum() -> None:
    """A bug that gloo had: reduce-scatter with AVG returned the sum."""
    right = dist.reduce_scatter_tensor

    def wrong(output, sent, op, group):
        right(output, sent, dist.ReduceOp.SUM if op == dist.ReduceOp.AVG else op, group)

    dist.reduce_scatter_tensor = wrong


def no_bfloat16() -> None:
    import torch

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


PLANTED: dict[Callable[[], None], tuple[bool, str]] = {
    average_that_is_a_sum: (
        False,
        "wrong: reduce_scatter_tensor avg of float32, float64, float16, bfloat16 "
        "at 2, 3, 4 ranks: rank 0 got [36.0, 60.0, 84.0] instead of [18, 30, 42]",
    ),
    no_bfloat16: (
        True,
        "unsupported: all_reduce sum of bfloat16 at 2, 3, 4 ranks: Invalid scalar type",
    ),
    one_rank_of_four_gathers_in_another_order: (
        False,
        "wrong: all_gather of float32, float64, float16, bfloat16, int64, int32, int8, "
        "uint8 at 4 ranks: rank 3 got [4.0, 5.0, 1.0, 3.0, 4.0, 5.0, 2.0, 3.0, 4.0, "
        "1.0, 2.0, 3.0] instead of [1, 2, 3, 2, 3, 4, 3, 4, 5, 4, 5, 1]",
    ),
}


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_planted_collective_is_named(plant: Callable[[], None]) -> None:
    well, line = PLANTED[plant]
    found = examine(plant)
    assert found.well == well
    assert line in in_words(found).splitlines()


def test_rank_that_dies_is_named() -> None:
    found = examine(lambda: os._exit(3) if os.environ["RANK"] == "2" else None)
    assert not found.well
    assert found.checks[-1].detail == "the ranks failed: rank 2: ended with exit code 3"
    assert "wrong   collectives" in in_words(found)


def test_nothing_probed_is_nothing_well() -> None:
    assert not Examination([Check("torch", "fine", "")], []).well


def test_interface_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo,nowhere0")
    check = doctor.check_interface()
    assert check.verdict == "wrong"
    assert check.detail.startswith("GLOO_SOCKET_IFNAME=lo,nowhere0; interfaces here: ")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert doctor.check_interface().verdict == "fine"


def test_host_name_that_leads_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "nowhere.invalid")
    check = doctor.check_interface()
    assert check.verdict == "trouble"
    assert "nowhere.invalid" in check.detail


def test_port_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setenv("MASTER_PORT", str(port))
        check = doctor.check_ports()
    assert check.verdict == "wrong"
    assert check.detail.startswith(f"environment: MASTER_PORT = {port} is in use")
    monkeypatch.delenv("MASTER_PORT")
    assert doctor.check_ports().verdict == "fine"


def test_more_threads_than_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.get_num_threads", lambda: 10_000)
    check = doctor.check_threads()
    assert check.verdict == "trouble"
    assert check.detail.startswith("10000 in torch")


def test_no_shared_memory(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setattr(doctor, "SHARED_MEMORY", tmp_path / "shm")
    assert doctor.check_shared_memory().verdict == "trouble"
    monkeypatch.setattr(doctor, "SHARED_MEMORY", tmp_path)
    assert doctor.check_shared_memory().detail.endswith(f"MB free in {tmp_path}")


def test_command_prints_json_and_has_an_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ill = Examination([Check("ports", "wrong", "none is free")], [])
    monkeypatch.setattr(doctor, "examine", lambda: ill)
    assert run(["doctor", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told == {
        "well": False,
        "checks": [{"name": "ports", "verdict": "wrong", "detail": "none is free"}],
        "probes": [],
    }
