"""Study `network`: expected times by hand, and its judgement of runs."""

import subprocess
import sys
from itertools import product
from pathlib import Path

import describe_links
import draw_links
import pandas as pd
import pytest
from arms import AGAIN, ARMS, HIERARCHICAL, ONE_HOST
from children import usage_with_children
from expectations import expected_ms
from link_model import Link, Network, Shaped
from link_rate import LOOPBACK
from planted import MEASURED
from speeds import Ratio, Speeds, named
from tabulate_hosts import judged_by, rows

from minitrain.core.files import write_json
from minitrain.report.checks import RUNGS

# no headers, no latency of frames: at 8 Mbit/s a byte takes a microsecond
CABLE = Shaped(alpha=1e-3, frame_bytes=0, overhead=1.0, burst_bytes=40_000)
LINKS = Network(Link.of(0, 1e-9), CABLE)


def test_buckets_of_a_step_share_what_a_link_has_saved_up() -> None:
    """Two messages of 1 ms for each bucket, and 100,000 bytes, of which the first
    40,000 pass at once; the second bucket begins when the first is done.
    """
    found = expected_ms(named("ddp"), [60_000, 40_000], "8mbit", LINKS)
    assert found == pytest.approx(4 * 1 + 100 - 40)
    # of four ranks each sends 1.5 times a bucket in six messages
    found = expected_ms(named("ddp, 4 hosts"), [60_000, 40_000], "8mbit", LINKS)
    assert found == pytest.approx(12 * 1 + 150 - 40)


def test_nothing_is_expected_of_a_link_that_was_not_fitted() -> None:
    assert expected_ms(named("ddp"), [60_000], "8mbit", None) is None
    assert expected_ms(named("ddp"), [60_000], "8mbit", Network(Link.of(0, 1))) is None
    assert expected_ms(named("one process"), [60_000], LOOPBACK, LINKS) is None


ROUNDS, SLOW, FAST = range(3), "100 Mbit/s", "unshaped"
BUSY, LOAD = "other processes used 34 % of the CPU", {"steal_share": 0.04}


def speeds(factors: dict[str, tuple[float, ...]], slow: float = 0.5) -> Speeds:
    """Every arm does 1000 tokens a second, ``slow`` times that over the slow link, and
    in each round ``factors`` times that.
    """
    rows = [
        {
            "round": number,
            "link": link,
            "arm": arm.name,
            "tokens_per_s": 1000.0
            * (slow if link == SLOW else 1)
            * factors.get(arm.name, (1, 1, 1))[number],
            "step_mean_ms": 30.0,
            "allreduce_p50_ms": 3.0,
        }
        for number, link, arm in product(ROUNDS, (ONE_HOST, FAST, SLOW), ARMS)
        if arm.goes_over(link)
    ]
    return Speeds(pd.DataFrame(rows))


def test_noise_floor_is_the_most_that_twins_were_apart() -> None:
    # 4 % faster, and in another round 1 / 1.25 times as fast: 25 % apart
    found = speeds({AGAIN: (1.0, 1.04, 0.8)})
    assert speeds({AGAIN: (1.0, 1.04, 0.99)}).noise_floor() == pytest.approx(0.04)
    # of one twin all-reduces took half as long
    twin = found._rows["arm"] == AGAIN
    found._rows.loc[twin & (found._rows["round"] == 1), "allreduce_p50_ms"] = 1.5
    # and the median arm has no spread
    floors = {"noise_floor": 0.25, "allreduce_noise_floor": 1.0, "spread": 0}
    assert judged_by(found) == pytest.approx(floors)


def test_rows_of_the_report_have_the_rounds_of_all_reduces() -> None:
    found = speeds({})
    mine = (found._rows["arm"] == "ddp") & (found._rows["link"] == SLOW)
    found._rows.loc[mine, "allreduce_p50_ms"] = [5.0, 2.0, 4.0]
    one = {"bucket_bytes": [60_000], "verdict": "proven", "same_on_one_host": True}
    bits = {arm.name: one for arm in ARMS}
    *_, last = rows(found, {FAST: None, SLOW: "8mbit"}, bits, LINKS)
    names = ("allreduce_ms_least", "allreduce_ms", "allreduce_ms_most")
    assert last["link"] == SLOW
    assert [last[name] for name in names] == [2.0, 4.0, 5.0]


def test_page_says_what_became_of_the_bits_and_by_what_it_judges() -> None:
    assert {*describe_links.RUNGS} <= {*RUNGS}
    equal = {"replay": "equal", "witness_gradients": "within tolerance"}
    one = {"verdict": "proven", "rungs": equal, "same_on_one_host": True}
    bits = {arm.name: one for arm in ARMS}
    other = {"replay": "not run", "witness_gradients": "not run"}
    bits[HIERARCHICAL] = {**one, "rungs": other, "same_on_one_host": False}
    found = speeds({AGAIN: (1, 1, 0.8), HIERARCHICAL: (1.4, 1.5, 1.3)})
    text = "\n".join(describe_links.page(found, bits, MEASURED))
    assert "Two arms that are the same were up to 25.0 % apart." in text
    assert "not judged" not in text
    assert "no difference seen" in text
    assert "| 1.40 (1.30 to 1.50) |" in text
    load = {**LOAD, "others_share": 0.3}
    busy = "\n".join(describe_links.page(found, bits, {**MEASURED, "load": load}))
    assert f"No speed is judged, since the machine was busy ({BUSY})." in busy
    assert "no difference seen" not in busy
    assert "| 1.40 (1.30 to 1.50), not judged |" in busy
    bits_of = text.partition("## Bits")[2]
    assert "| ddp | proven | equal | within tolerance | equal | equal |" in bits_of
    last = f"| {HIERARCHICAL} | proven | not run | not run | equal | other bits |"
    assert last in bits_of


def test_what_differs() -> None:
    assert Ratio(1.2, 1.1, 1.3).differs(0.1)
    assert Ratio(0.8, 0.7, 0.9).differs(0.1)
    # not further than twins are
    assert not Ratio(1.08, 1.05, 1.3).differs(0.1)
    assert not Ratio(0.93, 0.9, 0.99).differs(0.1)
    # one round contradicts the others
    assert not Ratio(1.2, 0.99, 1.3).differs(0.1)
    assert not Ratio(0.8, 0.7, 1.01).differs(0.1)


def test_picture_says_what_was_found_or_that_the_machine_was_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faster = {HIERARCHICAL: (1.4, 1.5, 1.3)}
    found = draw_links.title(speeds(faster), None)
    assert "DDP keeps 50 % of its unshaped" in found
    assert found.endswith(" 1.40 times as fast")
    # two lines of the picture
    assert len(found) <= 144
    # twins that were 60 % apart
    unsure = draw_links.title(speeds({AGAIN: (1, 1.6, 1), **faster}, 0.7), None)
    assert "no difference seen between 100" in unsure
    assert unsure.endswith("that is seen")

    write_json(tmp_path / "machine.json", {"load": {**LOAD, "others_share": 0.3}})
    monkeypatch.setattr(draw_links, "STUDY", tmp_path)
    monkeypatch.setattr(draw_links, "read", lambda: speeds(faster))
    titles: list[str] = []
    made = draw_links.title
    monkeypatch.setattr(
        draw_links, "title", lambda *told: titles.append(made(*told)) or titles[0]
    )
    draw_links.main()
    assert f"not judged, since the machine was busy ({BUSY})" in titles[0]
    assert (tmp_path / "network.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.slow
def test_children_that_have_ended_are_not_others() -> None:
    """A grandchild uses half a second of CPU time."""
    burn = "import time\nwhile time.process_time() < 0.5: pass"
    inner = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {burn!r}])"
    before = usage_with_children()
    subprocess.run([sys.executable, "-c", inner], check=True)
    used = usage_with_children().since(before)
    assert used.own_s >= 0.5
    assert used.own_s < 3
