"""The study `prediction` on a planted machine, in the place of its measurements."""

import shutil
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import claims
import describe_errors
import draw_errors
import draw_scale
import find_crossovers
import fit_model
import grounds
import numpy as np
import pandas as pd
import predict_steps
import pytest
import sections
import verify_crossovers
from crossover import Crossover
from held_out import LEAST_PAIRS
from link_rate import LOOPBACK
from network_namespaces import BURST_BYTES
from one_line import refusal
from placed_arms import arm_of
from planted import MACHINE, MEASURED, NETWORK, step_of
from prediction_settings import Prediction
from project import ROOT
from rows import all_settings
from setting import NO_SYNC, Setting, name_of
from study_settings import load_study

from minitrain.core.files import read_json, write_json

pytestmark = pytest.mark.slow

ROUNDS = 16
MODULES = (
    describe_errors,
    draw_errors,
    draw_scale,
    find_crossovers,
    fit_model,
    predict_steps,
    verify_crossovers,
)
ORIGIN = {**MEASURED, "burst_bytes": BURST_BYTES, "cables_left_out": None}


def turns(settings: list[Setting], law: Any, steps: int) -> pd.DataFrame:
    """Rows as measure_steps.py writes them, with 3 % of noise."""
    rng = np.random.default_rng(1)
    rows = []
    for setting in settings:
        step = step_of(setting)
        parts = step.data, step.forward, step.backward, step.optimizer
        for number in range(ROUNDS):
            factor = law(setting) * steps * rng.uniform(0.97, 1.03)
            names = ("data_s", "forward_s", "backward_s", "optimizer_s")
            rows.append(
                {
                    "round": number,
                    "arm": name_of(setting),
                    "processes": setting.processes,
                    "tokens": 40 * steps * setting.processes * setting.samples,
                    "seconds": factor * step.seconds,
                    "rank": 0,
                    **{n: factor * x for n, x in zip(names, parts, strict=True)},
                }
            )
    return pd.DataFrame(rows)


def trials(study: Any) -> pd.DataFrame:
    rows = [
        (number, sweep.link, sweep.processes, size, link.seconds(size, sweep.processes))
        for sweep in study.sweeps
        for link in [MACHINE.link(NETWORK.link(sweep.link), sweep.processes)]
        for size in sweep.sizes
        for number in range(ROUNDS)
    ]
    return pd.DataFrame(
        rows, columns=["round", "link", "processes", "num_bytes", "seconds"]
    )


def be_the_study(folder: Path, patch: pytest.MonkeyPatch) -> Path:
    """Make ``folder`` the study; with few draws where it is new."""
    if not folder.exists():
        folder.mkdir()
        text = (ROOT / "studies/prediction/params.yaml").read_text()
        few = text.replace("num_draws: 200\n", "num_draws: 5\n")
        assert few != text
        (folder / "params.yaml").write_text(few)
    for module in MODULES:
        patch.setattr(module, "STUDY", folder)
    return folder


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy in which nothing was measured."""
    return be_the_study(tmp_path / "prediction", monkeypatch)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy with what it measures of a planted machine, its claims verified and
    described, only to be read.
    """
    folder = tmp_path_factory.mktemp("told") / "prediction"
    with pytest.MonkeyPatch.context() as patch:
        measured(be_the_study(folder, patch))
        run(fit_model, predict_steps, find_crossovers)
        verify(folder)
        run(describe_errors, draw_errors, draw_scale)
    return folder


@pytest.fixture
def answered(told: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it for a test to change."""
    folder = Path(shutil.copytree(told, tmp_path / "prediction"))
    return be_the_study(folder, monkeypatch)


def measured(folder: Path, law: Any = lambda _: 1.0, cables: bool = True) -> None:
    """Write what was measured of the study's settings."""
    settings = load_study(folder, Prediction)
    fitted, held_out = all_settings(settings)
    every = [s for s in (*fitted, *held_out) if cables or s.link == LOOPBACK]
    table, sums = turns(every, law, settings.steps_per_round), trials(settings)
    table.to_csv(folder / "turns.csv", index=False)
    sums = sums if cables else sums[sums["link"] == LOOPBACK]
    sums.to_csv(folder / "trials.csv", index=False)
    origin = {**ORIGIN, "cables_left_out": None if cables else "needs root"}
    write_json(folder / "machine.json", origin)


def run(*modules: ModuleType) -> None:
    for module in modules:
        module.main()


def verify(
    folder: Path, load: Any = ORIGIN["load"], drift: float = 1.0, contender: int = 0
) -> None:
    """verify_crossovers.py, on the planted machine. The twin of a ``contender`` of the
    first claim takes ``drift`` times as long as what it is the twin of.
    """

    def measured(arms: Any, *_: int) -> tuple[pd.DataFrame, None, Any]:
        twins = [arm.name for arm in arms if arm.name.endswith(claims.AGAIN)]
        late = twins[contender]
        tables = []
        for arm in arms:
            law = drift if arm.name == late else 1.0
            table = turns([planted(arm)], lambda _, law=law: law, 3)
            tables.append(table.assign(arm=arm.name, tokens=1000))
        return pd.concat(tables), None, load

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify_crossovers, "run", measured)
        verify_crossovers.main()


def verified(folder: Path) -> list[dict[str, Any]]:
    return read_json(folder / "verified.json")["claims"]


def planted(arm: Any) -> Setting:
    """The setting that an arm measures."""
    changes = dict(arm.changes)
    return Setting(
        sync=changes["sync"] if arm.processes > 1 else NO_SYNC,
        processes=arm.processes,
        n_layer=arm.n_layer,
        n_embd=arm.n_embd,
        samples=arm.samples,
        micro_batches=changes["grad_accumulation_steps"],
        bucket_cap_mb=changes["bucket_cap_mb"],
        link=arm.link,
    )


def hold_out(study: Path, *more: str, without: tuple[str, ...] = ()) -> None:
    """Change the rows that are held out."""
    path = study / "params.yaml"
    before, after = path.read_text().split("  held_out:\n")
    rows, rest = after.split("  # All-reduces beside them")
    kept = [r for r in rows.splitlines() if not any(one in r for one in without)]
    text = "\n".join([*kept, *(f"    - {row}" for row in more), ""])
    path.write_text(f"{before}  held_out:\n{text}  # All-reduces beside them{rest}")


def test_what_was_seen_before_is_not_held_out(study: Path) -> None:
    """Also checks that each arm measures its setting."""
    fitted, held_out = all_settings(load_study(study, Prediction))
    alone = [s for s in (*fitted, *held_out) if s.sync != NO_SYNC or s.processes == 1]
    assert [planted(arm_of(setting)) for setting in alone] == alone
    original = (study / "params.yaml").read_text()
    # the same buckets as with 0.1 MiB; all kinds: tests/studies/test_setting.py
    hold_out(study, "[ddp, 2, 4, 128, 8, 1, 0.11, loopback]")
    line = refusal(load_study, study, Prediction)
    assert f"prediction.held_out.{len(held_out)} = [" in line
    assert "must be no repetition of" in line
    # a link that nothing is sent over makes nothing new
    (study / "params.yaml").write_text(original)
    hold_out(study, "[none, 1, 4, 96, 2, 1, null, 300mbit]", without=("300mbit",))
    line = refusal(load_study, study, Prediction)
    assert "a setting whose link no setting of fit has" in line


def test_planted_machine_is_believed_and_its_claims_hold(told: Path) -> None:
    page = (told / "table.md").read_text()
    assert "The model is believed: over 37 settings" in page
    assert "a link rate never fitted | 7 |" in page
    assert "within 10 % for all-reduces of 1 MB and more holds" in page
    found = verified(told)
    assert {one["question"] for one in found} == {"processes", "compression"}
    assert {one["claim"] for one in found} == {"holds"}
    assert f"{len(found)} of {len(found)} claims hold." in page
    assert "crossovers verified: on both sides of it" in page
    for name in ("prediction.png", "scale.png"):
        assert (told / name).read_bytes()[:4] == b"\x89PNG"
    # every coefficient has its interval
    for one in read_json(told / "fit.json")["coefficients"].values():
        assert one["low"] <= one["high"]
    answers = read_json(told / "crossovers.json")
    assert all(one["pairs"] >= LEAST_PAIRS for one in answers)
    about = {one["question"]: one for one in answers}
    assert about["compression"]["pairs_on_cables"] == 7
    # too few for a quantile; one process was held out four times
    for question, pairs, references in (("compression", 10, 10), ("processes", 20, 4)):
        assert about[question]["bound"] == "largest"
        said = f"the largest of {pairs} pairs, {references} distinct references |"
        assert said in page


def test_another_law_is_not_believed(study: Path) -> None:
    """Wide models of the held-out settings take twice as long, as none that is
    fitted.
    """
    measured(study, lambda setting: 1.0 + (setting.n_embd in (96, 192)))
    run(fit_model, predict_steps)
    table = pd.read_csv(study / "predictions.csv")
    held_out = table[table["role"] == "held out"]
    assert "is not believed" in sections.verdict(sections.errors_of(held_out), None)


def test_held_out_measurements_change_no_coefficient(answered: Path) -> None:
    settings = load_study(answered, Prediction)
    before = (answered / "fit.json").read_bytes()
    _, held_out = all_settings(settings)
    names = {name_of(setting) for setting in held_out}
    table, sums = (pd.read_csv(answered / f"{n}.csv") for n in ("turns", "trials"))
    table.loc[table["arm"].isin(names), "seconds"] *= 7
    unseen = sums["num_bytes"].isin(settings.held_out_sizes)
    sums.loc[unseen | (sums["link"] == "300mbit"), "seconds"] *= 7
    table.to_csv(answered / "turns.csv", index=False)
    sums.to_csv(answered / "trials.csv", index=False)
    run(fit_model)
    assert (answered / "fit.json").read_bytes() == before


def test_without_root_loopback_is_enough_for_a_verdict(study: Path) -> None:
    measured(study, cables=False)
    run(fit_model, predict_steps, find_crossovers)
    verify(study)
    run(describe_errors)
    page = (study / "table.md").read_text()
    assert "Loopback alone: a cable needs root." in page
    assert "The model is believed: over 21 settings" in page
    assert "Mbit/s" not in page


def test_claim_that_does_not_hold_is_refuted(answered: Path) -> None:
    answers = read_json(answered / "crossovers.json")
    for one in answers:
        for there in one["sides"].values():
            there["gain"] *= -1
    write_json(answered / "crossovers.json", answers)
    verify(answered)
    assert {one["claim"] for one in verified(answered)} == {"refuted"}


def test_claims_are_held_to_the_floor_of_their_own_twins(answered: Path) -> None:
    """One of the first claim's two pairs of twins is 40 times apart: it is undecided,
    and so is no claim that is about something else.
    """
    for contender in (0, 1):
        verify(answered, drift=40.0, contender=contender)
        first, *others = verified(answered)
        assert (first["claim"], round(first["noise_floor"])) == ("undecided", 39)
        about = {first["faster"], first["than"]}
        apart = [one for one in others if not {one["faster"], one["than"]} & about]
        assert len(apart) > 2
        assert {one["claim"] for one in apart} == {"holds"}
        assert all(one["noise_floor"] < 0.1 for one in apart)
        assert {one["num_pairs"] for one in (first, *others)} == {2}


def test_crossover_is_verified_where_both_sides_hold() -> None:
    found = [
        dict(zip(("over", "at", "claim"), row, strict=True), question="processes")
        for row in (
            *(("batch", 5.0, "holds"), ("batch", 5.0, "holds")),
            *(("width", 125, "holds"), ("width", 125, "undecided")),
            # one side is beyond the range; and one that crosses nowhere
            *(("mbit", 361, "holds"), ("mbit", None, "holds")),
        )
    ]
    said, *each = sections.crossovers(found)
    assert said.startswith("1 of 3 crossovers verified: on both sides of it")
    assert each == [
        "- processes over batch at 5 samples: holds, holds",
        "- processes over width at 125: holds, undecided",
        "- processes over mbit at 361 Mbit/s: holds, on one side alone",
    ]


def test_busy_machine_judges_nothing(answered: Path) -> None:
    load = {"others_share": 0.3, "steal_share": 0.04}
    write_json(answered / "machine.json", ORIGIN | {"load": load})
    run(fit_model, predict_steps, find_crossovers)
    verify(answered, load=load)
    run(describe_errors)
    page = (answered / "table.md").read_text()
    why = "the machine was busy (other processes used 34 % of the CPU)"
    assert f"The model is not judged, since {why}: over 37 settings" in page
    assert "within 10 % for all-reduces of 1 MB and more is not judged" in page
    assert f"No claim is judged: {why}." in page
    assert {one["claim"] for one in verified(answered)} == {"not judged"}
    for verdict in ("believed", "holds", "hold."):
        assert verdict not in page


def test_a_pair_with_a_fitted_setting_is_none() -> None:
    """With fp16 at 300 Mbit/s both are held out; on loopback one is fitted."""
    cabled = Setting("ddp", 2, 4, 128, 8, link="300mbit")
    local = replace(cabled, link=LOOPBACK)
    half = [replace(one, sync="fp16_compress") for one in (cabled, local)]
    index = [name_of(one) for one in (cabled, local, *half)]
    table = pd.DataFrame(
        {"predicted_ms": [6.0, 1, 3, 1], "measured_ms": [8.0, 1, 2, 1]}, index=index
    )
    found = grounds.pairs("compression", table, [cabled, *half])
    assert found == {(half[0], cabled): (2.0, 4.0)}


def test_too_few_pairs_are_said_to_be_too_few(study: Path) -> None:
    """No question is answered, nothing is measured, and the table names the reason."""
    one = "[fp16_compress, 2, 4, 192, 6, 1, null, 300mbit]"
    hold_out(study, one, without=("[fp16_compress", "[none, 1"))
    measured(study)
    run(fit_model, predict_steps, find_crossovers, verify_crossovers, describe_errors)
    answers = read_json(study / "crossovers.json")
    assert {one["answer"] for one in answers} == {"too few pairs"}
    assert {one["pairs"] for one in answers} == {0, 1}
    assert verified(study) == []
    page = (study / "table.md").read_text()
    rests_on = "1 pair, 1 distinct reference"
    assert f"| compression over mbit | 1 | {rests_on} | too few pairs |  |" in page
    assert "Nothing is sure enough to be claimed." in page


def test_an_end_at_which_less_is_claimed_is_not_tried() -> None:
    """For example if a gain decreases, or changes its sign."""
    found = Crossover(10, 5, 17, above=True)
    for at_end, wanted in ((0.3, 100), (0.2, 100), (0.15, 17), (-0.3, 17)):
        gains = {1: -0.4, 5: -0.2, 17: 0.2, 100: at_end}
        assert grounds.claimed_ends(gains.get, found, (1, 100)) == (1, wanted)
    # a side of which nothing is claimed keeps its end
    found = Crossover(10, 5, None, above=True)
    gain = {1: -0.4, 5: -0.2, 100: 0.1}.get
    assert grounds.claimed_ends(gain, found, (1, 100)) == (1, 100)
