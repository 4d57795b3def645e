"""The table of two hosts: what ran where, what was expected, and which bits it had."""

from dataclasses import replace
from typing import Any

from report_inputs import HOSTS, MODEL, provenance_of, results, studied, timing_of

from minitrain.report.page import page
from minitrain.report.results import Results
from minitrain.report.studied_hosts import studied_hosts
from minitrain.report.words import find

HEADING = "## And on two hosts?"


def rows(said: dict[str, Any]) -> list[list[str]]:
    return [row[2:-2].split(" | ") for row in said["table"].splitlines()[2:]]


def test_table_by_hand() -> None:
    said = studied_hosts(results([1, 2]))
    same = "proven, those of one host"
    assert rows(said) == [
        ["1 host", "1", "9,000", "8,900 to 9,100", "-", "-", "proven"],
        ["1 host", "2", "15,000", "14,800 to 15,100", "4.0 ms", "6.3 ms", "proven"],
        [
            "2 hosts, unshaped",
            "2",
            "14,000",
            "13,800 to 14,100",
            "4.0 ms",
            "7.5 ms",
            same,
        ],
        [
            "2 hosts, 100 Mbit/s",
            "2",
            "3,500",
            "3,490 to 3,510",
            "290.0 ms",
            "300.0 ms",
            same,
        ],
    ]
    assert said["outcome"] == (
        "2 of 2 links between two hosts gave the bits of one host. Over 100 Mbit/s "
        "training ran at 25.0 % of its speed over unshaped; arms that are the same "
        "were up to 4.0 % apart."
    )
    assert said["allreduce_noise_floor"] == "2.0 %"
    assert said["on_gpus"] is False


def test_other_bits_are_named() -> None:
    table = HOSTS.assign(same_on_one_host=[True, True, True, False])
    said = studied_hosts(results([2], studied_hosts=studied(table=table)))
    assert said["outcome"].startswith("1 of 2 links between two hosts gave the bits")
    assert rows(said)[-1][-1] == "proven, not those of one host"


def with_origin(**changes: Any) -> Results:
    found = studied(table=HOSTS)
    of_it = {**found.origin, **changes}
    return results([2], studied_hosts=replace(found, origin=of_it))


def test_links_that_twins_are_as_far_apart_are_no_difference() -> None:
    """The one is 4 times as fast: as far apart as arms that are the same."""
    said = studied_hosts(with_origin(noise_floor=3.0))
    assert said["outcome"].endswith(
        "No difference in speed is seen between 100 Mbit/s and unshaped: arms that are "
        "the same were up to 300.0 % apart."
    )
    assert "25.0 %" in studied_hosts(with_origin(noise_floor=2.9))["outcome"]


def test_links_whose_rounds_overlap_are_no_difference() -> None:
    table = HOSTS.assign(tokens_per_s_most=[9100, 15100, 14100, 13800])
    said = studied_hosts(results([2], studied_hosts=studied(table=table)))
    assert said["outcome"].endswith(
        "No difference in speed is seen between 100 Mbit/s and unshaped: rounds of "
        "both overlap."
    )


def test_one_link_is_compared_with_none() -> None:
    said = studied_hosts(results([2], studied_hosts=studied(table=HOSTS[:3])))
    assert said["outcome"] == "1 of 1 link between two hosts gave the bits of one host."


def test_all_reduces_as_far_apart_as_twins_are_as_expected() -> None:
    def last(**changes: Any) -> str:
        return rows(studied_hosts(with_origin(**changes)))[-1][5]

    # 300 ms for 290: 3.4 %
    assert last(allreduce_noise_floor=0.034) == "300.0 ms"
    assert last(allreduce_noise_floor=0.035) == "300.0 ms, as expected"
    # rounds on both sides of what was expected
    table = HOSTS.assign(allreduce_ms_least=[None, 6.1, 7.3, 289])
    said = studied_hosts(results([2], studied_hosts=studied(table=table)))
    assert rows(said)[-1][5] == "300.0 ms, as expected"


def test_rounds_far_apart_judge_nothing() -> None:
    said = studied_hosts(with_origin(spread=0.6, allreduce_noise_floor=9.0))
    assert said["outcome"].endswith(
        "No speed is judged, since the machine was busy (rounds of the same arm lie "
        "60 % apart)."
    )
    assert rows(said)[-1][5] == "300.0 ms"
    assert said["allreduce_noise_floor"] is None


def test_without_a_noise_floor_nothing_is_judged() -> None:
    """An older table has none."""
    found = studied(table=HOSTS.drop(columns=["allreduce_ms_least"]))
    of_it = {k: v for k, v in found.origin.items() if "floor" not in k}
    older = results([2], studied_hosts=replace(found, origin=of_it))
    said = studied_hosts(older)
    assert said["outcome"].endswith(
        "No speed is judged, since the study recorded no noise floor."
    )
    assert rows(said)[-1][5] == "300.0 ms"


def test_busy_machine_judges_no_link() -> None:
    found = studied(table=HOSTS)
    made = {**found.origin["provenance"], "load": {"others_share": 0.3}}
    busy = replace(found, origin={**found.origin, "provenance": made})
    assert studied_hosts(results([2], studied_hosts=busy))["outcome"] == (
        "2 of 2 links between two hosts gave the bits of one host. No speed is judged, "
        "since the machine was busy (others took 30 % of its cores)."
    )


def test_all_reduce_without_an_expectation() -> None:
    table = HOSTS.assign(allreduce_expected_ms=None)
    said = studied_hosts(results([2], studied_hosts=studied(table=table)))
    assert [row[4] for row in rows(said)] == ["-"] * 4


def with_a_gpu() -> Results:
    # one rank: nobody to reduce with
    gpu = {"machine": {"gpu": "Example GPU"}, "world_size": 1}
    measured = results([2])
    measured.timing["nccl-1"] = timing_of(1) | {"tokens_per_s": 70_000.0}
    measured.timing["nccl-1"]["allreduce_p50_ms"] = None
    measured.provenance["nccl-1"] = provenance_of(1) | gpu
    measured.equivalence["nccl-1"] = {"verdict": "undecided"}
    return measured


def test_run_on_a_gpu_has_a_row() -> None:
    said = studied_hosts(with_a_gpu())
    gpu = ["1 host, Example GPU", "1", "70,000", "-", "-", "-", "undecided"]
    assert rows(said)[-1] == gpu
    assert said["on_gpus"] is True


def test_page_has_it_only_where_it_is_of_this_model() -> None:
    other = studied(table=HOSTS, model=MODEL | {"n_layer": 1})
    own, foreign = results([1, 2]), results([1, 2], studied_hosts=other)
    assert HEADING in page(own, find(own))
    assert HEADING not in page(foreign, find(foreign))
    assert "Two hosts are left out: another model" in page(foreign, find(foreign))
