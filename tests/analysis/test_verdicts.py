from dataclasses import replace

import pytest

from minitrain.analysis.rungs import CheckVerdict, Reason, Rung, not_run
from minitrain.analysis.verdicts import (
    BITS,
    MEAN,
    MEAN_IN_EVAL,
    MEANING,
    WITNESS_DATA,
    verdict_of,
)
from minitrain.proof.words import rests_on

Rungs = dict[str, Rung]


def rung(verdict: str, detail: str = "") -> Rung:
    return Rung(None, None, None, CheckVerdict(verdict), detail)


def judged(rungs: Rungs) -> tuple[str, str]:
    ruling = verdict_of(rungs)
    return ruling.verdict, rests_on(ruling, rungs)


def proven() -> Rungs:
    names = ["ranks", *BITS, *MEANING, *WITNESS_DATA, MEAN]
    names += ["witness_probe", "witness_gradients"]
    return {name: rung("equal") for name in names}


def test_required_checks_by_name() -> None:
    """Names are spelled out: a test from the lists would miss a dropped name."""
    assert judged(proven()) == (
        "proven",
        "bit-identical to its replay, and an independent witness confirms the "
        "gradients of its steps and in eval mode",
    )
    bits = "replay replay_gradients replay_parameters replay_losses data"
    assert {*BITS} == {*bits.split()}
    assert {*MEANING} == {"trained", "reference"}
    required = {"witness_data", "witness_hashes", "witness_step"}
    assert {*WITNESS_DATA} >= required
    assert MEAN == "witness_mean"


def test_nothing_is_proven_without_one_of_them() -> None:
    for name in ("ranks", *BITS, *MEANING, *WITNESS_DATA, MEAN):
        for verdict in ("missing", "not run", "undecided", "breach"):
            rungs = proven()
            if verdict == "missing":
                del rungs[name]
            else:
                rungs[name] = rung(verdict, "why")
            found, rests_on = judged(rungs)
            case = (name, verdict)
            if verdict == "breach":
                assert (found, rests_on) == ("breach", f"{name}: why"), case
            elif name in (*WITNESS_DATA, MEAN):
                assert found == "replay only", case
            else:
                assert found == "undecided", case


@pytest.mark.parametrize("one", ["witness_probe", "witness_gradients"])
def test_one_of_the_witnesss_gradients_will_do(one: str) -> None:
    rungs = proven()
    del rungs[one]
    assert judged(rungs)[0] == "proven"
    rungs |= {"witness_probe": rung("not run"), "witness_gradients": rung("not run")}
    verdict, rests_on = judged(rungs)
    assert verdict == "replay only"
    assert rests_on.endswith("no witness supports it")


def test_proven_in_eval_mode_needs_the_mean_there() -> None:
    unseen = proven() | {MEAN: rung("not run", "it draws")}
    found = judged(unseen | {MEAN_IN_EVAL: rung("within tolerance")})
    assert found[0] == "proven in eval mode"
    assert found[1].endswith("and in eval mode; it draws")
    assert judged(unseen | {MEAN_IN_EVAL: rung("not run")})[0] == "replay only"
    assert judged(unseen | {MEAN_IN_EVAL: rung("breach")})[0] == "breach"


def test_known_cause_is_the_first_line_of_a_breach() -> None:
    coupled = replace(not_run("it depends on others"), max_abs_diff=0.1)
    two = {name: rung("breach", name) for name in ("replay_losses", "replay_gradients")}
    assert judged(proven() | two)[1] == "replay_gradients: replay_gradients"
    found = judged(proven() | two | {MEAN: coupled})
    assert found[1].startswith("witness_mean: it depends on others; replay_gradients")
    found = judged(proven() | two | {"witness_data": rung("breach", "samples")})
    assert found == ("breach", "witness_data: samples")
    found = judged(proven() | two | {MEAN: rung("breach", "a sum")})
    assert found == ("breach", "witness_mean: a sum")


def test_ranks_and_bits_may_be_missing() -> None:
    for why, proof in (
        (Reason.SINGLE_RANK, "proven"),
        (Reason.ONE_MEMORY, "proven"),
        (Reason.IS_REFERENCE, "undecided"),
        # the same words without the reason
        (not_run(Reason.SINGLE_RANK).detail, "undecided"),
    ):
        assert judged(proven() | {"ranks": not_run(why)})[0] == proof, why
    none = "no bit-exact replay and no independent check"
    assert judged({}) == ("undecided", none)
    found = judged(proven() | {"trained": rung("not run", "all overflowed")})
    assert found == ("undecided", "no parameter changed: all overflowed")
    bits = {name: rung("not run") for name in BITS}
    verdict, rests_on = judged(proven() | bits)
    assert verdict == "undecided"
    assert "equal bits were not promised or not compared, but an" in rests_on


def test_reason_why_a_run_was_not_compared_with_one_process_is_named() -> None:
    silent, why = rung("not run"), {"one_process": rung("not run", "it rains")}
    for changed, verdict in (
        ({}, "proven"),
        ({"witness_mean": silent}, "replay only"),
        ({"replay": silent}, "undecided"),
    ):
        rests_on = judged(proven() | changed)[1]
        line = f"{rests_on}; not compared with one process: it rains"
        assert judged(proven() | changed | why) == (verdict, line)
    # a breach hides nothing
    broken = proven() | why | {"data": rung("breach", "wet")}
    assert judged(broken) == ("breach", "data: wet")
    for rungs in (
        {"one_process": rung("undecided")},
        {"one_process": not_run(Reason.IS_REFERENCE)},
        # the weakest promise, which is kept
        {"one_process": rung("not run", "no"), "loss": rung("within tolerance")},
    ):
        assert judged(proven() | rungs) == judged(proven())
