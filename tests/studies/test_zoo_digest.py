"""Digest of the zoo study for the report."""

from typing import Any

from zoo_digest import digest, loss_curve

# two clean runs 1 apart have a standard deviation of 0.71
CLEAN = [[4.0] * 8, [5.0] * 8]


def bug(check: str, losses: list[float], **verdicts: str) -> dict[str, Any]:
    about = {"met_in": "a project #1", "model": "plain", "check": check}
    return {**about, "verdicts": verdicts, "losses": losses}


def test_curve_is_compared_with_the_spread_of_clean_ones() -> None:
    assert loss_curve([4.7] * 8, CLEAN) == "looks right"
    assert loss_curve([4.72] * 8, CLEAN) == "looks wrong"


def test_digest_has_the_curve_and_the_checks_of_each_bug() -> None:
    """One of three is not caught."""
    bugs = {
        "sum_for_mean": bug("replay", [4.0] * 8, ranks="equal", replay="breach"),
        "other_data": bug("data", [9.0] * 8, data="breach", replay="breach"),
        "stops": bug("ranks", [4.0], ranks="equal"),
    }
    zoo = {"bugs": bugs, "clean": [{"breaches": []}, {"breaches": ["ranks"]}]}
    origin = {"measured_at": "2026-01-01T02:03:04Z", "git_commit": "0123"}
    more = {"clean_losses": {"plain": CLEAN}, "code": {"a.py": "0"}, "machine": {}}
    found = digest(zoo | origin | more)
    curves = [one["loss"] for one in found["bugs"].values()]
    assert curves == ["looks right", "looks wrong", "training stops"]
    caught = [one["caught_by"] for one in found["bugs"].values()]
    assert caught == [["replay"], ["data", "replay"], []]
    assert (found["clean_runs"], found["alarms"]) == (2, 1)
