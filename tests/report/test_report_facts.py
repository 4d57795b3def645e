from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from report_inputs import (
    ACCOUNT,
    HOSTS,
    MACHINE,
    MODEL,
    bugs,
    facts,
    hosts,
    ladder_of,
    on_two_hosts,
    origin,
    provenance_of,
    published,
    rung,
    stragglers_of,
    studied,
    studied_collectives,
    studied_ladder,
    timing_of,
)
from zoo_digest import LossCurve

from minitrain.core.errors import UserError
from minitrain.report.checks import Mark, byte_equivalent, outcomes_of
from minitrain.report.facts import Facts, exposed_comm_pct
from minitrain.report.numbers import times
from minitrain.report.publish import manifest, report, summary
from minitrain.report.published import summary_lines
from minitrain.report.render import sentence
from minitrain.report.study_results import Mismatch, bare_allreduce

# of a run without calibration, or without observed last gradients
UNSPLIT = {"forward_ms": 20.0, "backward_ms": 75.0, "step_ms": 95.0}
BUSY = provenance_of(1, load={"others_share": 0.4, "steal_share": 0.0})


def with_parts(f: Facts, account: dict[str, Any]) -> Facts:
    """The same facts with another account of the largest run."""
    timing = {**f.timing[f.run], "account": account}
    return replace(f, timing={**f.timing, f.run: timing})


def with_interference(f: Facts, low: float) -> Facts:
    table = f.account.copy()
    where = (table["run"] == "gloo-2") & (table["part"] == "interference_ms")
    table.loc[where, "low_ms"] = low
    return replace(f, account=table)


def test_timings_of_two_machines_are_refused() -> None:
    other = provenance_of(2, machine=MACHINE | {"cpu": "Other"})
    with pytest.raises(UserError, match="Other"):
        facts([1, 2], provenance={"gloo-1": provenance_of(1), "gloo-2": other})


def test_outcomes() -> None:
    for check, mark, shown in (
        (rung("passed"), Mark.PASSED, "✓ passed"),
        (rung("equal", 0, 0.0), Mark.EQUAL, "= equal"),
        (rung("within tolerance", 9, 3.1e-06), Mark.NEAR, "≈ 3.1e-06"),
        (rung("within tolerance"), Mark.NEAR, "≈ within"),
        (rung("undecided"), Mark.UNDECIDED, "? undecided"),
        (rung("breach"), Mark.BREACH, "✗ breach"),
        (rung("not run"), Mark.NOT_RUN, "- not run"),
    ):
        found = outcomes_of({"ranks": check, "rests_on": "x"})
        assert [(one.mark, str(one)) for one in found.values()] == [(mark, shown)]


def test_byte_equivalent() -> None:
    assert byte_equivalent(ladder_of(2)) is True
    assert byte_equivalent(ladder_of(1)) is None
    assert byte_equivalent(ladder_of(2) | {"replay": rung("breach", 1, 0.1)}) is False
    # NaN with equal bytes is not equal
    nan = rung("breach") | {"bytes_equal": True}
    assert byte_equivalent(ladder_of(2) | {"replay": nan}) is False
    assert byte_equivalent({}) is None


def in_words(f: Facts, folder: Path) -> str:
    """All sentences that depend on the facts, and the five lines."""
    names = ("same_headline", "equivalence", "counts", "headline", "speed_notes")
    names += ("account_headline", "account_notes", "losses_headline", "overview")
    run = f"gloo-{f.world_size}"
    texts = [sentence(name, f) for name in names]
    _, (*lines, _) = summary_lines(published(folder, f))
    assert max(map(len, lines)) <= 80
    return "\n".join([*texts, sentence("straggler", f, run), *lines])


def with_verdict(verdict: str, **changes: Any) -> Facts:
    ladders = {run: ladder_of(w) for run, w in (("gloo-1", 1), ("gloo-2", 2))}
    given = {run: of | {"verdict": verdict} for run, of in ladders.items()}
    given["gloo-2"] |= changes.pop("checks", {})
    return facts([1, 2], noise=0.001, equivalence=given, **changes)


def busy_while_training() -> Facts:
    timing = {"gloo-1": timing_of(1), "gloo-2": timing_of(2)}
    timing["gloo-2"]["machine_busy"] = "other processes used 87 % of the CPU"
    return facts([1, 2], timing=timing)


def slow(others_wait_ms: float | None) -> dict[str, Any]:
    ranks = [
        {"rank": 1, "excess_ms": 12.0, "low_ms": 11.0, "high_ms": 13.0},
        {"rank": 0, "excess_ms": 2.0, "low_ms": 1.0, "high_ms": 3.0},
    ]
    found = stragglers_of(2) | {"slow": ranks, "others_wait_ms": others_wait_ms}
    timing = {"gloo-1": timing_of(1), "gloo-2": timing_of(2) | {"stragglers": found}}
    return {"timing": timing}


ALONE = {"one_process": rung("not run")}
# each with different verdicts on bits, speed, time and stragglers
CASES: dict[str, Callable[[], Facts]] = {
    "proven": lambda: with_verdict("proven", **slow(9.7)),
    "proven in eval mode": lambda: with_parts(
        with_verdict(
            "proven in eval mode",
            speeds={"gloo_2": 8_000},
            checks={"world_sizes": rung("equal", 0, 0.0)},
        ),
        ACCOUNT | {"wait_ms": 15.0},
    ),
    "replay only": lambda: with_interference(
        with_verdict("replay only", speeds={"gloo_2": 19_000}), -1.0
    ),
    "undecided": lambda: with_verdict(
        "undecided",
        speeds={"gloo_2": 10_000},
        checks={"ranks": rung("undecided"), "replay": rung("passed")},
    ),
    "busy": lambda: with_verdict(
        "proven", checks={"ranks": rung("not run")}, baseline_provenance=BUSY
    ),
    "busy while training": busy_while_training,
    "account that is not split": lambda: with_parts(
        with_verdict("proven", speeds={"gloo_2": 21_000}, checks=ALONE), UNSPLIT
    ),
    "no account": lambda: with_parts(
        with_verdict("proven", **slow(None)), {"step_ms": None}
    ),
    "one process": lambda: facts([1], noise=0.001),
    "two hosts": lambda: on_two_hosts(with_verdict("proven"), "gloo-2"),
}


@pytest.mark.parametrize("case", CASES)
def test_sentences_of_each_verdict(case: str, tmp_path: Path) -> None:
    """Review a sentence that changed, then copy it into the file."""
    parts = Path(__file__).with_name("sentences.txt").read_text().split("== ")[1:]
    golden = dict(part.split(" ==\n", 1) for part in parts)
    assert in_words(CASES[case](), tmp_path) == golden[case].strip()


def test_notes_give_reasons_only_where_the_rounds_decide() -> None:
    decided = manifest(facts([1, 2], noise=0.001))["lesson_notes"]
    assert "of that ceiling" in decided
    assert "computing takes 84.0 %" in decided
    for other in (
        facts([1, 2], speeds={"gloo_2": 10_000}, noise=0.001),
        facts([1, 2], baseline_provenance=BUSY),
    ):
        notes = manifest(other)["lesson_notes"]
        assert "ceiling" not in notes
        assert "computing takes" not in notes
    assert "the machine was busy during the 20 rounds (other" in notes
    assert "tokens per second" not in notes


CONTRACT = [
    *("seed", "lab", "backend", "world_size", "model_params", "steps"),
    *("allreduce_p50_ms", "allreduce_p95_ms"),
    *("tokens_per_sec_1proc", "tokens_per_sec_2proc"),
    *("byte_equivalent", "lesson_notes", "launcher"),
]


def test_manifest_has_the_keys_of_the_contract() -> None:
    found = manifest(facts([1, 2, 4]))
    assert list(found)[: len(CONTRACT)] == CONTRACT
    assert (found["world_size"], found["tokens_per_sec_2proc"] > 10_000) == (4, True)
    slower = facts([1, 2], speeds={"gloo_2_timed": 8_200}, noise=0)
    assert manifest(slower)["instrument_cost_pct"] == 100
    assert manifest(facts([1]))["tokens_per_sec_2proc"] is None
    assert manifest(facts([2]))["tokens_per_sec_1proc"] is None
    busy = manifest(facts([1, 2], baseline_provenance=BUSY))
    assert busy["machine_busy"] == "other processes used 40 % of the CPU"
    assert (busy["over_one_process"], busy["over_all_cores_verdict"]) == (None, None)


KEYS = [
    *("verdict", "loss", "max_abs_diff", "tokens_per_s", "speedup"),
    *("speedup_all_cores", "step_p50_ms", "allreduce_p50_ms", "allreduce_p95_ms"),
    "exposed_comm_pct",
]


def test_metric_has_few_keys_that_mean_something() -> None:
    found = summary(facts([1, 2, 4], noise=0.001))
    assert list(found) == ["noise_floor", "machine_busy", "gloo-1", "gloo-2", "gloo-4"]
    assert found["machine_busy"] is None
    assert 0 < found["noise_floor"] < 0.01
    assert [*found["gloo-1"]] == [*found["gloo-2"]] == KEYS
    # 5.5 * exp(-99 / 40) is 0.463 at the last step
    assert found["gloo-2"]["loss"] == pytest.approx(0.463, abs=1e-3)
    # 3.1e-6 of the ladder
    assert found["gloo-2"]["max_abs_diff"] == 3.1e-06
    assert found["gloo-1"]["max_abs_diff"] is None
    # of 10,000, 13,000 and 16,400 tokens per second
    assert found["gloo-2"]["tokens_per_s"] == pytest.approx(16_400, rel=0.05)
    assert found["gloo-2"]["speedup"] == pytest.approx(1.64, rel=0.01)
    assert found["gloo-2"]["speedup_all_cores"] == pytest.approx(16.4 / 13, rel=0.01)
    assert found["gloo-1"]["speedup"] == 1
    assert found["gloo-1"]["speedup_all_cores"] == pytest.approx(10 / 13, rel=0.01)
    times = ("step_p50_ms", "allreduce_p50_ms", "allreduce_p95_ms")
    assert [found["gloo-2"][key] for key in times] == [97.0, 12.5, 19.5]
    # of 100 ms, 1.5 are waiting and 10 communication
    assert found["gloo-2"]["exposed_comm_pct"] == 10.0
    parts = {"forward_ms": 6.0, "wait_ms": 1.5, "comm_exposed_ms": 0.5}
    assert exposed_comm_pct(parts | {"step_ms": 8.0}) == 6.25
    assert exposed_comm_pct(UNSPLIT) is None
    # not separable from waits
    hosts = summary(on_two_hosts(facts([1, 2]), "gloo-2"))
    assert hosts["gloo-2"]["exposed_comm_pct"] is None


SPEEDS = {"tokens_per_s", "speedup", "speedup_all_cores"}


def test_metric_has_no_number_of_a_busy_machine() -> None:
    quiet = facts([1, 2])
    while_compared = facts([1, 2], baseline_provenance=BUSY)
    both = replace(busy_while_training(), baseline_provenance=BUSY)
    times = {*KEYS[-4:]}
    for f, where, nulls in (
        (quiet, None, set()),
        (while_compared, "baseline", SPEEDS),
        (busy_while_training(), "gloo-2", times),
        (both, "baseline, gloo-2", SPEEDS | times),
    ):
        found = summary(f)
        assert found["machine_busy"] == where
        assert (found["noise_floor"] is None) is bool(f.busy)
        assert {k for k, value in found["gloo-2"].items() if value is None} == nulls


def test_nothing_shows_a_number_of_a_busy_machine() -> None:
    f = replace(busy_while_training(), baseline_provenance=BUSY)
    found = manifest(f)
    keys = ("allreduce_p50_ms", "allreduce_p95_ms", "noise_floor")
    speeds = ("tokens_per_sec_1proc", "tokens_per_sec_2proc")
    assert {found[key] for key in (*keys, *speeds)} == {None}
    assert f.scaling.filter(like="tokens").isna().all(axis=None)
    text = str(report(f))
    # the speed of an arm, the all-reduce, computing and the noise floor
    for number in ("16,4", "12.5 ms", "84.0 %", "1.64"):
        assert number not in text
    assert text.count("not measured (machine busy)") > 20
    assert "84.0 %" in str(report(facts([1, 2])))
    timing = {run: of | {"machine_busy": "busy"} for run, of in f.timing.items()}
    assert "The components of a step" in text
    assert "The components of a step" not in str(report(facts([1, 2], timing=timing)))


def test_a_study_applies_to_what_produced_it() -> None:
    there = origin()["provenance"] | {"machine": MACHINE | {"cores": 4}}
    cases: list[tuple[dict[str, Any], Mismatch | None]] = [
        ({}, None),
        ({"model": MODEL | {"n_layer": 2}}, Mismatch("n_layer", 2, 4)),
        ({"provenance": there}, Mismatch("cores", 4, 2)),
    ]
    for changes, why in cases:
        found = studied(origin=origin(**changes))
        assert found.mismatch(provenance_of(2)) == why


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
    assert [row["link"] for row in found.links] == ["100 Mbit/s", "unshaped"]
    # 3,500 of 14,000
    assert found.kept == pytest.approx(0.25)
    assert found.links_differ
    assert not hosts(table=HOSTS.assign(tokens_per_s=14_000.0)).links_differ
    # 290 ms expected and 300 measured are 3.4 % apart, the floor is 2 %
    expectations = [row["expectation"] for row in found.rows()]
    assert expectations == [None, *["unexpected"] * 3]
    around = HOSTS.assign(allreduce_ms_least=1.0, allreduce_ms_most=999.0)
    last = hosts(table=around).rows()[3]["expectation"]
    assert last == "inconclusive"
    close = HOSTS.assign(allreduce_ms=HOSTS["allreduce_expected_ms"] * 1.01)
    last = hosts(table=close).rows()[3]["expectation"]
    assert last == "as expected"
    load = {"load": {"others_share": 0.9, "steal_share": 0.0}}
    busy = hosts(origin=origin(provenance=origin()["provenance"] | load))
    assert "other processes used 90 %" in sentence("hosts_speed", busy)
    assert {row["expectation"] for row in busy.rows()} == {None}


def test_bare_allreduce_is_of_this_machine_and_size() -> None:
    sweep = studied_collectives()
    found = bare_allreduce(sweep, MACHINE, 2, 3_500_000)
    assert found is not None
    assert (found["num_bytes"], found["p50_us"]) == (4_000_000, 4000.0)
    assert bare_allreduce(sweep, MACHINE, 3, 3_500_000) is None
    assert bare_allreduce(sweep, MACHINE | {"cores": 4}, 2, 3_500_000) is None
    assert bare_allreduce(sweep, MACHINE, 2, 10**9) is None
    # of float64
    doubles = {"gloo-2": provenance_of(2, gradient_bytes=8 * 870_000)}
    f = replace(facts([1, 2]), provenance=facts([1, 2]).provenance | doubles)
    assert "the gradients of a step are 7.0 MB" in str(report(f))


def test_bugs_are_counted_by_their_loss_curve_and_by_their_check() -> None:
    assert sentence("bugs_headline", bugs()) == (
        f"1 of 3 injected bugs left a loss curve that {LossCurve.HIDDEN}; 2 were "
        "caught by the check designed for them"
    )


def test_ratio_that_is_not_one_does_not_read_as_one() -> None:
    assert times(1.64, 0.5) == ["1.64", "0.50"]
    # all with the same precision
    assert times(1.004, 1.64) == ["1.004", "1.640"]
    assert times(0.9951) == ["0.995"]
