"""The facts of the report by number, and its sentences: one golden text per verdict."""

import re
from dataclasses import replace
from typing import Any

import pytest
from report_inputs import (
    ACCOUNT,
    CONTRACT,
    HOSTS,
    MACHINE,
    MODEL,
    facts,
    hosts,
    ladder_of,
    on_two_hosts,
    origin,
    provenance_of,
    rung,
    stragglers_of,
    studied,
    studied_collectives,
    studied_ladder,
    timing_of,
    zoo,
)

from minitrain.core.errors import UserError
from minitrain.report.checks import (
    Mark,
    byte_equivalent,
    outcomes_of,
    require_known_verdicts,
)
from minitrain.report.facts import Facts, only_runs
from minitrain.report.publish import lesson_notes, manifest, summary
from minitrain.report.render import sentence
from minitrain.report.studied import (
    Expectation,
    Foreign,
    LossCurve,
    Origin,
    bare_allreduce,
    digest,
    loss_curve,
)

BUSY = provenance_of(1, load={"others_share": 0.4, "steal_share": 0.0})


def with_account(f: Facts, **changes: Any) -> Facts:
    """The same facts with another account of the largest run."""
    timing = {**f.timing[f.run], "account": ACCOUNT | changes}
    return replace(f, timing={**f.timing, f.run: timing})


def with_interference(f: Facts, low: float) -> Facts:
    """The same facts, where interference may be as low as ``low``."""
    table = f.account.copy()
    where = (table["run"] == "gloo-2") & (table["part"] == "interference_ms")
    table.loc[where, "low_ms"] = low
    return replace(f, account=table)


def test_ratios_are_those_of_the_arms() -> None:
    f = facts([1, 2], noise=0.001)
    # 16,400 over 10,000, 13,000 and the ceiling's 19,000
    assert f.against_one.ratio == pytest.approx(1.64, rel=0.01)
    assert f.against_all_cores.ratio == pytest.approx(16.4 / 13, rel=0.01)
    assert f.of_ceiling is not None
    assert f.of_ceiling.ratio == pytest.approx(16.4 / 19, rel=0.01)
    assert f.no_sync_against_one is not None
    assert f.no_sync_against_one.ratio == pytest.approx(1.9, rel=0.01)
    assert (f.hook_cost.arm_a, f.hook_cost.arm_b) == ("gloo-2-timed", "gloo-2")
    alone = facts([1])
    assert (alone.of_ceiling, alone.no_sync_against_one) == (None, None)


def test_shares_are_those_of_the_account() -> None:
    f = facts([1, 2])
    # 20 + 60 + 4 of 100 ms are computing; 15.5 % are communication
    assert sum(f.compute.values()) == pytest.approx(0.84)
    communication = ["comm_exposed_ms", "interference_ms", "wait_ms"]
    assert [*f.others] == [*communication, "data_ms"]
    assert f.left_by_account == pytest.approx(0.845)
    # the ceiling says 16.4 / 19 = 0.863: within 5 % of a step
    assert f.account_agrees
    assert not with_account(f, wait_ms=15.0).account_agrees
    assert with_interference(f, -1.0).interference_is_zero
    assert not with_interference(f, 0.5).interference_is_zero
    assert with_account(f, closed=False).shares == {}
    assert "gloo-2" not in with_account(f, closed=None).accounts
    # one process has no communication
    assert {"interference_ms", "comm_exposed_ms"}.isdisjoint(facts([1]).shares)


def test_losses_are_compared_where_all_have_them() -> None:
    # 5.5 * exp(-99 / 40) is 0.463; the runs are 2e-7 apart at every step
    assert sentence("losses_headline", facts([1, 2])) == (
        "Loss of gloo-1, gloo-2: 5.50 at the first step, 0.46 at the last, "
        "at most 2.0e-07 apart"
    )


def test_timings_of_two_machines_are_refused() -> None:
    other = provenance_of(2, machine=MACHINE | {"cpu": "Other"})
    with pytest.raises(UserError, match="Other"):
        facts([1, 2], provenance={"gloo-1": provenance_of(1), "gloo-2": other})
    with pytest.raises(UserError, match="file: no run gloo-2; it holds gloo-1"):
        only_runs({"gloo-1": 1}, ["gloo-1", "gloo-2"], "file")


@pytest.mark.parametrize(
    ("check", "mark", "shown"),
    [
        (rung("equal"), Mark.PASSED, "✓ passed"),
        (rung("equal", 0, 0.0), Mark.EQUAL, "= equal"),
        (rung("within tolerance", 9, 3.1e-06), Mark.NEAR, "≈ 3.1e-06"),
        (rung("within tolerance"), Mark.NEAR, "≈ within"),
        (rung("undecided"), Mark.UNDECIDED, "? undecided"),
        (rung("breach"), Mark.BREACH, "✗ breach"),
        (rung("not run"), Mark.NOT_RUN, "- not run"),
    ],
)
def test_outcomes(check: dict[str, Any], mark: Mark, shown: str) -> None:
    found = outcomes_of({"ranks": check, "rests_on": "x"})
    assert [(one.mark, str(one)) for one in found.values()] == [(mark, shown)]


def test_unknown_verdicts_are_refused() -> None:
    with pytest.raises(UserError, match="file: gloo-1, ranks: verdict 'fine', must be"):
        require_known_verdicts({"gloo-1": {"ranks": rung("fine")}}, "file")
    with pytest.raises(UserError, match="file: gloo-1: verdict 'good', must be one"):
        require_known_verdicts({"gloo-1": {"verdict": "good"}}, "file")


def test_byte_equivalent() -> None:
    assert byte_equivalent(ladder_of(2)) is True
    assert byte_equivalent(ladder_of(1)) is None
    assert byte_equivalent(ladder_of(2) | {"replay": rung("breach", 1, 0.1)}) is False
    # NaN has equal bytes and is equal to nothing
    nan = rung("breach") | {"bytes_equal": True}
    assert byte_equivalent(ladder_of(2) | {"replay": nan}) is False
    assert byte_equivalent({}) is None


def ladders(verdict: str, **checks: Any) -> dict[str, Any]:
    """Entries of two runs, both with ``verdict``."""
    told = {"verdict": verdict, "rests_on": "REASON"}
    return {"gloo-1": ladder_of(1) | told, "gloo-2": ladder_of(2) | told | checks}


SAME = "gloo-2 is bit-identical to its replay, "


@pytest.mark.parametrize(
    ("verdict", "headline"),
    [
        ("proven", f"Yes: {SAME}and an independent witness agrees"),
        ("replay only", f"{SAME}but no witness checked it"),
        ("undecided", "gloo-2 is undecided"),
    ],
)
def test_headline_of_each_verdict(verdict: str, headline: str) -> None:
    f = facts([1, 2], equivalence=ladders(verdict))
    assert sentence("same_headline", f) == headline
    # 16 outcomes: 2 passed, 9 equal, 2 within tolerance, 3 not run
    assert sentence("equivalence", f) == (
        f"The verdict on gloo-2 is {verdict}: REASON. No check breached: 2 checks "
        "passed, and of 14 comparisons, 9 are equal to the last bit, 2 are within "
        "tolerance, 3 were not run."
    )
    other = {**f.equivalence, "gloo-1": ladder_of(1) | {"verdict": "breach"}}
    several = sentence("same_headline", replace(f, equivalence=other))
    assert several == f"{headline}; gloo-1 is breach"


def test_a_breach_comes_before_everything() -> None:
    f = facts([1, 2], equivalence=ladders("proven", ranks=rung("breach")))
    assert sentence("same_headline", f) == "No: gloo-2 ranks breached"
    text = sentence("equivalence", f)
    assert text == "The runs are not equivalent: gloo-2 ranks breached."
    f = facts([1, 2], equivalence={"gloo-1": {}, "gloo-2": {}})
    assert "nothing is proven" in sentence("equivalence", f)
    same = ladders("proven", world_sizes=rung("equal", 0, 0.0))
    text = sentence("equivalence", facts([1, 2], equivalence=same))
    assert "The bits do not depend on the number of processes." in text


BOTH = "one process on both cores"


@pytest.mark.parametrize(
    ("world_sizes", "speed", "headline"),
    [
        (
            [1, 2],
            16_400,
            "2 processes: faster than one process (1.64 times the speed), faster than "
            f"{BOTH} (1.26 times the speed)",
        ),
        (
            [1, 2],
            10_000,
            f"2 processes: no difference seen from one process, slower than {BOTH} "
            "(0.77 times the speed)",
        ),
        (
            [1],
            None,
            "One process under DDP: slower than one process without DDP (0.99 times "
            f"the speed), slower than {BOTH} (0.76 times the speed)",
        ),
    ],
)
def test_headline_of_speed(world_sizes: list[int], speed: Any, headline: str) -> None:
    speeds = {"gloo_2": speed} if speed else {}
    f = facts(world_sizes, speeds=speeds, noise=0.001)
    assert sentence("headline", f) == headline


def test_notes_give_reasons_only_where_the_rounds_decide() -> None:
    decided = facts([1, 2], noise=0.001)
    notes = lesson_notes(decided)
    for words in (
        "2 processes with 1 thread each ran faster than one process",
        "of that ceiling",
        "computing takes 84.0 % (forward 20.0 %, backward 60.0 %, optimizer 4.0 %); ",
        "the two agree within 5.0 % of the step.",
    ):
        assert words in notes
    same = facts([1, 2], speeds={"gloo_2": 10_000}, noise=0.001)
    notes = lesson_notes(same)
    assert "It is undecided whether 2 processes with 1 thread each ran faster" in notes
    assert notes.endswith("So no reason is given.")
    notes = lesson_notes(facts([1, 2], baseline_provenance=BUSY))
    assert notes.startswith("The machine was busy during the 20 rounds: ")
    assert "tokens per second" not in notes
    assert "computing takes" not in notes
    alone = lesson_notes(facts([1]))
    assert alone.startswith("Only one process was configured, so scaling was not")
    far = lesson_notes(on_two_hosts(decided, "gloo-2"))
    assert "gloo-2 on 2 hosts: its step account does not explain" in far
    assert "computing takes" not in far


@pytest.mark.parametrize(
    ("reached", "words"),
    [
        (19_000, "no cost of communication is seen"),
        (15_000, "the rest is the cost of communication"),
        (21_000, "more than a ceiling allows, so the cost of communication is unknown"),
    ],
)
def test_ceiling(reached: float, words: str) -> None:
    f = facts([1, 2], speeds={"gloo_2": reached}, noise=0.001)
    assert words in sentence("ceiling", f)


def test_account_in_words() -> None:
    f = facts([1, 2], noise=0.001)
    title = "gloo-2: computing takes 84.0 % of a step, exposed communication 10.0 %"
    assert sentence("account_headline", f) == title
    alone = "gloo-1: computing takes 97.7 % of a step"
    assert sentence("account_headline", facts([1])) == alone
    open_one = with_account(f, closed=False, gap_pct=-7.25)
    assert "too far apart to explain it" in sentence("account_headline", open_one)
    assert "7.2 % apart, more than 5.0 %" in sentence("account_notes", open_one)
    missing = with_account(f, closed=None)
    assert "not every part of a step was timed" in sentence("account_headline", missing)
    assert "do not explain its speed" in sentence("account_notes", missing)
    disagree = with_account(f, wait_ms=15.0)
    assert "the two disagree" in sentence("account_notes", disagree)
    notes = sentence("account_notes", with_interference(f, -1.0))
    assert "interference 4.0 % (not told from zero)" in notes


def test_stragglers_in_words() -> None:
    f = facts([1, 2])

    def told(**changes: Any) -> str:
        timing = timing_of(2) | {"stragglers": stragglers_of(2) | changes}
        other = replace(f, timing={**f.timing, "gloo-2": timing})
        return sentence("straggler", other, "gloo-2")

    seen = "No straggler is seen in gloo-2: a rank that needed 8.2 ms"
    assert told().startswith(seen)
    assert told(undecided="REASON") == (
        "Whether gloo-2 has a straggler is undecided: REASON."
    )
    slow = {"rank": 1, "excess_ms": 12.0, "low_ms": 11.0, "high_ms": 13.0}
    more = {"rank": 0, "excess_ms": 2.0, "low_ms": 1.0, "high_ms": 3.0}
    text = told(slow=[slow, more], others_wait_ms=9.7)
    assert text.startswith("Rank 1 of gloo-2 needs 12.0 ms a step more than the others")
    assert "(90 % confidence: 11.0 to 13.0 ms, rank 0 by 2.0 ms)" in text
    wait = "the others wait 9.7 ms for it in a step of 97.0 ms, 10.0 % (42 steps)"
    assert wait in text
    assert "was not measured" in told(slow=[slow])


def test_manifest_has_the_keys_of_the_contract() -> None:
    found = manifest(facts([1, 2, 4]))
    assert list(found)[: len(CONTRACT)] == CONTRACT
    assert (found["world_size"], found["tokens_per_sec_2proc"] > 10_000) == (4, True)
    assert manifest(facts([1]))["tokens_per_sec_2proc"] is None
    assert manifest(facts([2]))["tokens_per_sec_1proc"] is None
    busy = manifest(facts([1, 2], baseline_provenance=BUSY))
    assert busy["machine_busy"] == "others took 40 % of its cores"
    assert (busy["over_one_process"], busy["over_all_cores_verdict"]) == (None, None)


def test_metric_has_few_keys_that_mean_something() -> None:
    found = summary(facts([1, 2, 4]))
    assert list(found) == ["noise_floor", "gloo-1", "gloo-2", "gloo-4"]
    assert found["gloo-1"].keys() == {"verdict", "loss"}
    # 5.5 * exp(-99 / 40) is 0.463 at the last step
    assert found["gloo-2"]["loss"] == pytest.approx(0.463, abs=1e-3)
    # 3.1e-6 of the ladder
    assert found["gloo-2"]["gap_billionths"] == 3100
    assert found["gloo-2"]["speedup"] == pytest.approx(1.64, rel=0.02)
    busy = summary(facts([1, 2], baseline_provenance=BUSY))
    assert busy["gloo-2"]["speedup"] is None


def test_a_study_applies_to_what_produced_it() -> None:
    there = origin()["provenance"] | {"machine": MACHINE | {"cores": 4}}
    other = Foreign(Origin.MODEL, "n_layer", 2, 4)
    cases: list[tuple[dict[str, Any], Foreign | None]] = [
        ({}, None),
        ({"provenance": None}, Foreign(Origin.UNRECORDED)),
        ({"train_code_sha256": "00" * 32}, Foreign(Origin.CODE)),
        ({"model": MODEL | {"n_layer": 2}}, other),
        ({"provenance": there}, Foreign(Origin.MACHINE, "cores", 4, 2)),
    ]
    for changes, why in cases:
        found = studied(origin=origin(**changes))
        assert found.foreign(provenance_of(2)) == why
    assert sentence("foreign", other) == (
        "another model produced its result (n_layer: 2, here 4)"
    )


def test_ladder_study_counts_bits() -> None:
    found = studied(table=studied_ladder(replay="breach"))
    # two cases of six byte checks each; of each one breaches
    verdicts = found.byte_verdicts
    assert (verdicts.count("equal"), len(verdicts)) == (10, 12)
    assert found.num_breaches == 2
    first, second = found.rows()
    assert first == ["AdamW", 3, *"====", "breach", "=", *["2.5e-07"] * 3]
    assert second[-3:] == ["-"] * 3


def test_two_hosts_are_compared_beyond_the_floor() -> None:
    found = hosts()
    assert (found.num_same, len(found.far)) == (2, 2)
    # 3,500 of 14,000
    assert found.kept == pytest.approx(0.25)
    assert found.links_differ
    assert not hosts(table=HOSTS.assign(tokens_per_s=14_000.0)).links_differ
    # 290 ms expected and 300 measured are 3.4 % apart, the floor is 2 %
    expectations = [row["expectation"] for row in found.rows()]
    assert expectations == [None, *[Expectation.UNEXPECTED] * 3]
    around = HOSTS.assign(allreduce_ms_least=1.0, allreduce_ms_most=999.0)
    last = hosts(table=around).rows()[3]["expectation"]
    assert last is Expectation.NOT_TOLD_APART
    close = HOSTS.assign(allreduce_ms=HOSTS["allreduce_expected_ms"] * 1.01)
    last = hosts(table=close).rows()[3]["expectation"]
    assert last is Expectation.AS_EXPECTED
    load = {"load": {"others_share": 0.9, "steal_share": 0.0}}
    busy = hosts(origin=origin(provenance=origin()["provenance"] | load))
    assert not busy.is_judged
    assert "others took 90 %" in sentence("hosts_speed", busy)
    assert {row["expectation"] for row in busy.rows()} == {None}


def test_bare_allreduce_is_of_this_machine_and_size() -> None:
    sweep = studied_collectives()
    found = bare_allreduce(sweep, MACHINE, 2, 3_500_000)
    assert found is not None
    assert (found["num_bytes"], found["p50_us"]) == (4_000_000, 4000.0)
    assert bare_allreduce(sweep, MACHINE, 3, 3_500_000) is None
    assert bare_allreduce(sweep, MACHINE | {"cores": 4}, 2, 3_500_000) is None
    assert bare_allreduce(sweep, MACHINE, 2, 10**9) is None
    anonymous = sweep.drop(columns="code_sha256")
    assert bare_allreduce(anonymous, MACHINE, 2, 3_500_000) is None


def test_bugs_are_counted_by_what_their_losses_show() -> None:
    found = digest(zoo())
    curves = [bug["loss"] for bug in found["bugs"].values()]
    assert curves == [LossCurve.HIDDEN, LossCurve.SHOWS, LossCurve.STOPS]
    assert (found["clean_runs"], found["alarms"]) == (2, 1)
    assert sentence("bugs_headline", found) == (
        "1 of 3 injected bugs left a loss curve that looks right; 2 were caught by the "
        "check that is meant for them"
    )
    assert not re.search(r"\d", sentence("bugs_headline", None))
    # two clean seeds 1 apart have a standard deviation of 0.71
    clean = [[4.0] * 8, [5.0] * 8]
    assert loss_curve([4.7] * 8, clean) is LossCurve.HIDDEN
    assert loss_curve([4.72] * 8, clean) is LossCurve.SHOWS
