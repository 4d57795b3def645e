"""The study `prediction` on a planted machine, in the place of its measurements."""

import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import claims
import describe_errors
import draw_errors
import draw_scale
import find_crossovers
import fit_model
import numpy as np
import pandas as pd
import predict_steps
import pytest
import sections
import verify_crossovers
from cost_model import Compute, Machine, Overheads, predict
from held_out import LEAST_PAIRS
from link_model import Line, Link, Network, Shaped
from network_namespaces import BURST_BYTES
from one_line import refusal
from placed_arms import arm_of
from prediction_settings import Prediction
from project import ROOT, load_yaml, set_params
from rows import all_settings
from setting import NO_SYNC, Setting, name_of
from study_settings import load_study

from minitrain.core.files import read_json, write_json

pytestmark = pytest.mark.slow

# a realistic core: 90 Gflop/s; a bucket costs as much as the backward of a layer
MACHINE = Machine(
    cores=2,
    compute=Compute(
        forward=(1.1e-11, 3e-10, 5e-10, 1.5e-5),
        backward=(2.2e-11, 5e-10, 2e-9, 3e-5),
        optimizer=(2e-9, 4e-5),
        data=(3e-5, 1e-4),
    ),
    contention=1.1,
    crowding=0.05,
    link_crowding=(3.0, 1.5),
    overheads=Overheads(
        step=2e-3,
        straggle=0.02,
        byte=3e-10,
        hidden_byte=5e-10,
        hidden_bucket=7e-4,
        crowd=4e-3,
        cast=6e-10,
    ),
)
NETWORK = Network(
    Link((Line(0, 2e-4, 1.2e-9), Line(2**19, 5e-4, 7e-10))),
    Shaped(alpha=1e-4, frame_bytes=500, overhead=1.05, burst_bytes=BURST_BYTES),
)
# of a measurement on an idle machine
ORIGIN = {
    "load": {"others_share": 0.01, "steal_share": 0.0},
    "measured_at": "2030-01-01T00:00:00+00:00",
    "code_sha256": "0" * 64,
    "machine": {"cpu": "planted", "gpu": None, "cores": 2, "torch": "2.13.0+cpu"},
    "burst_bytes": BURST_BYTES,
    "cables_left_out": None,
}
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


def turns(settings: list[Setting], law: Any, steps: int) -> pd.DataFrame:
    """Rows as measure_steps.py writes them, with 3 % of noise."""
    rng = np.random.default_rng(1)
    rows = []
    for setting in settings:
        link = None if setting.sync == NO_SYNC else NETWORK.link(setting.link)
        step = predict(setting, MACHINE, link)
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
        shutil.copy(ROOT / "studies/prediction/params.yaml", folder)
        set_params(folder, {"prediction.num_draws": 5})
    for module in MODULES:
        patch.setattr(module, "STUDY", folder)
    return folder


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
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
    folder = Path(shutil.copytree(told, tmp_path / "prediction"))
    return be_the_study(folder, monkeypatch)


def measured(folder: Path, law: Any = lambda _: 1.0) -> None:
    """Write what was measured of the study's settings."""
    settings = load_study(folder, Prediction)
    fitted, held_out = all_settings(settings)
    table = turns([*fitted, *held_out], law, settings.steps_per_round)
    table.to_csv(folder / "turns.csv", index=False)
    trials(settings).to_csv(folder / "trials.csv", index=False)
    write_json(folder / "machine.json", ORIGIN)


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


def test_what_was_seen_before_is_not_held_out(study: Path) -> None:
    """Also checks that each arm measures its setting."""
    fitted, held_out = all_settings(load_study(study, Prediction))
    alone = [s for s in (*fitted, *held_out) if s.sync != NO_SYNC or s.processes == 1]
    assert [planted(arm_of(setting)) for setting in alone] == alone
    # the same buckets as with 0.1 MiB; all kinds: tests/studies/test_setting.py
    held_out = load_yaml(study / "params.yaml")["prediction"]["held_out"]
    again = ["ddp", 2, 4, 128, 8, 1, 0.11, "loopback"]
    set_params(study, {"prediction.held_out": [again, *held_out]})
    line = refusal(load_study, study, Prediction)
    assert "prediction.held_out.0 = [" in line
    assert "must be no repetition of" in line


def test_planted_machine_is_believed_and_its_claims_hold(told: Path) -> None:
    page = (told / "table.md").read_text()
    assert "The model is believed: over 37 settings" in page
    assert "within 10 % for all-reduces of 1 MB and more holds" in page
    found = verified(told)
    assert {one["question"] for one in found} == {"processes", "compression"}
    assert {one["claim"] for one in found} == {"holds"}
    assert f"{len(found)} of {len(found)} claims hold." in page
    for name in ("prediction.png", "scale.png"):
        assert (told / name).read_bytes()[:4] == b"\x89PNG"
    answers = read_json(told / "crossovers.json")
    assert all(one["pairs"] >= LEAST_PAIRS for one in answers)
    # too few for a quantile
    assert {one["bound"] for one in answers} == {"largest"}


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


def test_busy_machine_judges_nothing(answered: Path) -> None:
    load = {"others_share": 0.3, "steal_share": 0.04}
    write_json(answered / "machine.json", ORIGIN | {"load": load})
    run(fit_model, predict_steps, find_crossovers)
    verify(answered, load=load)
    run(describe_errors)
    page = (answered / "table.md").read_text()
    why = "the machine was busy (other processes used 34 % of the CPU)"
    assert f"The model is not judged, since {why}: over 37 settings" in page
    assert f"No claim is judged: {why}." in page
    assert {one["claim"] for one in verified(answered)} == {"not judged"}
    for verdict in ("believed", "holds", "hold."):
        assert verdict not in page
