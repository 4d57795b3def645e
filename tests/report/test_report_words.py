"""Sentences on speed: each branch, with figures worked out by hand."""

import dataclasses
from typing import Any

import pandas as pd
import pytest
from report_inputs import ACCOUNT, on_two_hosts, provenance_of, results

from minitrain.analysis.comparison import Comparison
from minitrain.core.errors import UserError
from minitrain.report.account_words import account_headline
from minitrain.report.manifest import manifest
from minitrain.report.numbers import all_of, counted, plural, times
from minitrain.report.page import page
from minitrain.report.summary import summary
from minitrain.report.words import (
    Finding,
    account_notes,
    find,
    headline,
    lesson_notes,
    losses_headline,
    speed_notes,
)


def compared(
    a: float, b: float, *, spread: float = 0.01, floor: float = 0.012
) -> Comparison:
    ratio = a / b
    low, high = ratio - spread, ratio + spread
    return Comparison("a", "b", a, b, ratio, low, high, floor, 3, 20)


def finding(**changes: Any) -> Finding:
    """2 processes: 16,000 tokens/s; one: 10,000, all cores 12,500; silent: 19,000."""
    fields: dict[str, Any] = {
        "run": "gloo-2",
        "num_hosts": 1,
        "world_size": 2,
        "threads": 1,
        "cores": 2,
        "sync": "ddp",
        "against_one": compared(16_000, 10_000),
        "against_all_cores": compared(16_000, 12_500),
        "no_sync_against_one": compared(19_000, 10_000),
        "of_ceiling": compared(16_000, 19_000),
        "account": dict(ACCOUNT),
        "interference_ms": (3.5, 4.5),
        "busy": None,
    }
    return Finding(**fields | changes)


def test_faster() -> None:
    notes = lesson_notes(finding())
    assert (
        "2 processes with 1 thread each ran faster than one process with 1 thread: "
        "16,000 against 10,000 tokens per second in the median, round by round "
        "1.60 times the speed (5-95 % interval 1.59 to 1.61)."
    ) in notes
    assert (
        "a difference below the noise floor of 1.2 % counts as none: the largest that "
        "3 A/A pairs showed in this run (in another, identical arms may differ by"
    ) in notes
    # 16,000 / 12,500
    assert "one process that uses both cores: 16,000 against 12,500" in notes
    assert "1.28 times the speed" in notes
    # 19,000 / 10,000 and 16,000 / 19,000
    assert "1.90 times the speed of one (ideal: 2)" in notes
    assert "DDP reaches 84.2 % of that ceiling" in notes
    assert "the rest is the price of communication" in notes
    assert "slower" not in notes
    assert "computing threads share" not in notes


def test_account_shares_are_those_of_the_parts() -> None:
    notes = lesson_notes(finding())
    # forward 20 + backward 60 + optimizer 4 of 100 ms
    assert "step of gloo-2 (100.0 ms), computing takes 84.0 %" in notes
    assert "(forward 20.0 %, backward 60.0 %, optimizer 4.0 %)" in notes
    parts = "exposed communication 10.0 %, interference 4.0 %, wait 1.5 %, data 0.5 %"
    assert parts in notes
    # 100 - 1.5 - 4 - 10 = 84.5 % against the ceiling's 84.2 %
    assert "84.5 % of that step would be left, where the rounds found 84.2 %" in notes
    assert "agree within 5.0 %" in notes


@pytest.mark.parametrize("speed", [16_000, 10_050])
def test_account_of_two_hosts_explains_no_speed_of_one(speed: float) -> None:
    """Whatever the rounds decide: what those steps waited for is another network."""
    one = compared(speed, 10_000)
    near, far = (
        lesson_notes(finding(num_hosts=hosts, against_one=one)) for hosts in (1, 2)
    )
    said = (
        "All ran on one host, and gloo-2 on 2 hosts: its step account explains no "
        "speed here. "
    )
    assert said in far
    assert "step of gloo-2" not in far
    assert "that step would be left" not in far
    # the rest is that of the rounds alone
    before, ends, _ = near.partition(" Of an average step of gloo-2 (")
    assert bool(ends) == (speed == 16_000)
    assert far.replace(said, "") == before


def test_account_of_two_hosts_is_shown_as_that() -> None:
    title = account_headline(finding(num_hosts=2))
    assert title.startswith("gloo-2 (2 hosts): computing takes 84.0 % of a step")
    incomplete = account_headline(finding(num_hosts=2, account=None))
    assert incomplete == "gloo-2 (2 hosts): not every part of a step was timed"


def test_hosts_of_the_largest_run_are_found() -> None:
    measured = results([1, 2, 4])
    assert find(measured).num_hosts == 1
    # another than the one the findings are about
    assert find(on_two_hosts(measured, "gloo-2")).num_hosts == 1
    far = on_two_hosts(measured, "gloo-4")
    assert find(far).num_hosts == manifest(far, find(far))["num_hosts"] == 2


def test_account_that_disagrees_with_the_ceiling_explains_nothing() -> None:
    # 84.5 % left by the account, 97 % by the rounds
    notes = lesson_notes(finding(of_ceiling=compared(16_000, 16_500)))
    assert "disagree, so the account does not explain the speed" in notes


def test_slower_on_more_processes_than_cores() -> None:
    notes = lesson_notes(
        finding(
            run="gloo-4",
            world_size=4,
            against_one=compared(8_000, 10_000),
            against_all_cores=compared(8_000, 12_500),
            no_sync_against_one=compared(9_500, 10_000),
            of_ceiling=compared(8_000, 9_500),
        )
    )
    assert "4 processes with 1 thread each ran slower than one process" in notes
    assert "0.80 times the speed" in notes
    assert "4 computing threads share 2 cores." in notes
    assert "0.95 times the speed of one (ideal: 4)" in notes
    assert "faster" not in notes


@pytest.mark.parametrize(
    ("comparison", "reason"),
    [
        (compared(10_050, 10_000, spread=0.02), "the interval includes 1"),
        (compared(10_050, 10_000, spread=0.001), "is below the noise floor"),
    ],
)
def test_undecided_gives_no_reason(comparison: Comparison, reason: str) -> None:
    undecided = finding(against_one=comparison)
    notes = lesson_notes(undecided)
    assert "The evidence does not decide whether 2 processes with 1 thread" in notes
    assert reason in notes
    assert notes.endswith("So no reason is given.")
    assert "computing takes" not in notes
    assert "ceiling" not in notes
    assert headline(undecided).startswith(
        "2 processes: no difference seen from one process, faster than one process on"
    )


BUSY = "others took 40 % of its cores"


@pytest.mark.parametrize(
    "speeds", [{}, {"gloo_2": 69_400}, {"gloo_2": 5_000}, {"gloo_2": 10_000}]
)
def test_busy_machine_judges_no_speed(speeds: dict[str, float]) -> None:
    """Whatever was measured: on one, 6.94 times the speed was a disturbance."""
    load = {"others_share": 0.35, "steal_share": 0.05}
    origin = provenance_of(1) | {"load": load}
    measured = results([1, 2], speeds=speeds, baseline_provenance=origin)
    found = find(measured)
    assert found.busy == BUSY
    assert headline(found) == "2 processes: the machine was busy, no speed judged"
    notes = lesson_notes(found)
    assert notes.startswith(f"The machine was busy during the 20 rounds: {BUSY}. ")
    written = page(measured, found)
    text = headline(found) + notes + written
    for verdict in ("faster than", "slower than", "no difference seen", "times the"):
        assert verdict not in text.replace("times the speed without", "")
    assert f"\n## How fast? {headline(found)}\n" in written
    # a command that can be typed, and is shown as one
    again = "`.venv/bin/dvc repro --force --single-item baseline` and then"
    assert again in notes
    assert again in written
    assert summary(measured, found)["gloo-2"]["speedup"] is None
    published = manifest(measured, found)
    assert published["machine_busy"] == BUSY
    assert {published[key] for key in published if key.startswith("over_")} == {None}


def test_quiet_machine_has_a_headline() -> None:
    load = {"others_share": 0.03, "steal_share": 0.01}
    origin = provenance_of(1) | {"load": load}
    measured = results([1, 2], baseline_provenance=origin)
    found = find(measured)
    assert "faster than one process" in headline(found)
    assert f"\n## How fast? {headline(found)}\n" in page(measured, found)
    told = summary(measured, found)
    assert told["gloo-2"]["speedup"] == round(found.against_one.ratio, 3)
    assert told["noise_floor"] == round(found.against_one.noise_floor, 3)
    published = manifest(measured, found)
    assert published["machine_busy"] is None
    assert published["over_one_process_verdict"] == "faster"
    assert published["over_all_cores"] == round(found.against_all_cores.ratio, 4)


def test_rounds_that_scatter_are_a_busy_machine_where_nothing_else_is_known() -> None:
    quiet, disturbed = (results([1, 2], noise=noise) for noise in (0.05, 1.0))
    assert find(quiet).busy is None
    assert str(find(disturbed).busy).startswith("rounds of the same arm lie")


def test_account_that_does_not_close_is_refused() -> None:
    gap = ACCOUNT | {"plain_step_ms": 90.0, "gap_pct": 11.1, "closed": False}
    notes = lesson_notes(finding(account=gap))
    assert (
        "The timed parts of a step of gloo-2 add up to 100.0 ms, while a step without "
        "instruments takes 90.0 ms: 11.1 % apart, more than 5.0 %, so they do not "
        "explain its speed."
    ) in notes
    assert "computing takes" not in notes
    assert account_headline(finding(account=gap)) == (
        "gloo-2: the parts of a step add up to 100.0 ms, a step takes 90.0 ms: too far "
        "apart to explain it"
    )
    less = gap | {"sum_ms": 80.0, "gap_pct": -11.1}
    assert "add up to 80.0 ms" in lesson_notes(finding(account=less))
    assert " 11.1 % apart" in lesson_notes(finding(account=less))


def test_no_account() -> None:
    notes = lesson_notes(finding(account=None))
    assert "Not every part of a step of gloo-2 was timed" in notes
    assert "computing takes" not in notes


def test_account_with_a_missing_part_is_left_out() -> None:
    measured = results([1, 2])
    nulls = dict.fromkeys(("wait_ms", "sum_ms", "gap_pct", "closed"))
    timing = measured.timing["gloo-2"]
    hurt = timing | {"account": timing["account"] | nulls}
    found = find(
        dataclasses.replace(measured, timing={**measured.timing, "gloo-2": hurt})
    )
    assert found.account is None


def test_null_parts_are_not_mentioned() -> None:
    parts = ACCOUNT | {"interference_ms": None, "wait_ms": None}
    notes = lesson_notes(finding(account=parts))
    _, _, account = notes.partition("Of an average step")
    sentence = account.partition(".  ")[0].partition(". ")[0]
    assert "interference" not in sentence
    assert "wait" not in sentence


@pytest.mark.parametrize(
    ("value", "interval", "told"),
    [
        (4.0, (3.5, 4.5), True),
        (4.0, (-0.5, 8.5), False),
        (-1.0, (-1.5, 0.2), False),
        (-1.0, None, False),
    ],
)
def test_interference_around_zero_says_so(
    value: float, interval: tuple[float, float] | None, told: bool
) -> None:
    account = ACCOUNT | {"interference_ms": value}
    notes = lesson_notes(finding(account=account, interference_ms=interval))
    share = f"interference {value:.1f} %"
    assert share in notes
    assert (f"{share} (not told from zero)" in notes) is not told


@pytest.mark.parametrize(
    ("ddp", "words"),
    [(19_000, "no cost of communication is seen"), (20_000, "more than a ceiling")],
)
def test_at_or_above_the_ceiling(ddp: float, words: str) -> None:
    assert words in lesson_notes(finding(of_ceiling=compared(ddp, 19_000)))


def test_one_process_says_nothing_of_several() -> None:
    alone = finding(
        run="gloo-1",
        world_size=1,
        against_one=compared(9_500, 10_000),
        no_sync_against_one=None,
        of_ceiling=None,
        account=ACCOUNT | {"interference_ms": None, "comm_exposed_ms": None},
        interference_ms=None,
    )
    notes = lesson_notes(alone)
    assert notes.startswith("Only one process was asked for: nothing here says how")
    assert "One process under DDP ran slower than one process without DDP" in notes
    assert "ceiling" not in notes
    assert "communication" not in notes
    assert headline(alone).startswith("One process under DDP: slower than one without")


def test_headline() -> None:
    assert headline(finding()) == (
        "2 processes: faster than one process (1.60 times the speed), "
        "faster than one process on both cores (1.28 times the speed)"
    )


def test_swapped_arms_flip_every_sentence() -> None:
    fast = find(results([1, 2]))
    slow = find(results([1, 2], speeds={"gloo_2": 10_000, "one_process": 16_400}))
    assert "ran faster than one process with" in lesson_notes(fast)
    assert "ran slower than one process with" in lesson_notes(slow)


@pytest.mark.parametrize("world_sizes", [[1], [1, 2], [2], [2, 4], [1, 2, 4]])
def test_find_reads_the_largest_run(world_sizes: list[int]) -> None:
    found = find(results(world_sizes))
    largest = max(world_sizes)
    assert found.run == f"gloo-{largest}"
    assert (found.of_ceiling is None) == (largest == 1)
    assert found.interference_ms == (None if largest == 1 else (3.5, 4.5))
    assert found.against_one.arm_a == found.run
    assert lesson_notes(found)


def test_results_refuse_two_machines() -> None:
    one = results([1, 2])
    other = {"machine": {**one.machine, "cpu": "Another CPU"}}
    mixed = {**one.provenance, "gloo-2": {**one.provenance["gloo-2"], **other}}
    with pytest.raises(UserError, match="gloo-2"):
        dataclasses.replace(one, provenance=mixed)
    gpu = {"machine": {**one.machine, "gpu": "Example GPU"}}
    dataclasses.replace(one, provenance={**one.provenance, "nccl-1": gpu})


def test_losses_headline() -> None:
    one = pd.DataFrame({"step": [0, 1], "loss": [5.5, 3.0]})
    two = pd.DataFrame({"step": [0, 1], "loss": [5.5, 3.0 + 2e-6]})
    text = losses_headline({"gloo-1": one, "gloo-2": two})
    assert text == (
        "Loss of gloo-1, gloo-2: 5.50 at the first step, 3.00 at the last, "
        "at most 2.0e-06 apart"
    )
    assert "apart" not in losses_headline({"gloo-1": one})


def test_numbers() -> None:
    assert times(1.634, 1.6, 1.7) == ["1.63", "1.60", "1.70"]
    assert times(0.992, 0.987, 0.996) == ["0.992", "0.987", "0.996"]
    assert (plural(1, "core"), plural(2, "core")) == ("1 core", "2 cores")
    assert plural(2, "process", "processes") == "2 processes"
    assert [all_of(count, "core") for count in (1, 2, 16)] == [
        "the only core",
        "both cores",
        "all 16 cores",
    ]
    assert (counted(1, "step"), counted(12_078, "step")) == ("1 step", "12,078 steps")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_hosts": 2},
        {"busy": "others took 40 % of its cores"},
        {"against_one": compared(10_050, 10_000, spread=0.02)},
        {"account": None},
    ],
)
def test_lesson_is_the_two_paragraphs_of_the_page(changes: dict[str, Any]) -> None:
    found = finding(**changes)
    both = [speed_notes(found), account_notes(found)]
    assert lesson_notes(found) == " ".join(filter(None, both))
    # where nothing is decided, the parts of a step explain nothing
    decided = not {"num_hosts", "busy", "against_one"} & {*changes}
    assert bool(both[1]) is decided
