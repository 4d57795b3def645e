import json
import re
import shutil
from argparse import Namespace
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest
from commands import output_of
from hypothesis import example, given
from hypothesis import strategies as st
from markupsafe import Markup
from project import PARAMS_FILE
from report_inputs import (
    MACHINE,
    MODEL,
    UNCHANGED,
    arms,
    bugs,
    facts,
    ladder_of,
    on_two_hosts,
    origin,
    provenance_of,
    rounds,
    rung,
    studied,
    timing_of,
)

from minitrain.cli.report import answer
from minitrain.core.errors import EvidenceError, UserError
from minitrain.core.files import write_json
from minitrain.core.params import load_params
from minitrain.report.publish import report as page_of
from minitrain.report.render import escaped, markdown, sentence, to_html
from stages import report

pytestmark = pytest.mark.slow

NASTY = '<script>alert(1)</script> & a | b *c* _d_ `e` [f](g) "h"\nnext'
SHOWN = " ".join(NASTY.split())


class Reader(HTMLParser):
    """Collects tags, texts and alt texts of a page, and checks that tags are paired."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.alts: list[str] = []
        self.open: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.alts += [str(text) for name, text in attrs if name == "alt"]
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def pictures(folder: Path) -> Path:
    for name in ("overview.svg", "scaling.png", "account.png", "losses.png"):
        (folder / name).write_bytes(b"pixels")
    return folder


def test_html_escapes_everything(tmp_path: Path) -> None:
    """A hostile text in every field of external origin."""
    ladder = ladder_of(2) | {"verdict": "proven", "rests_on": NASTY}
    ladder[NASTY] = rung("equal", detail=NASTY)
    machine = MACHINE | {"cpu": NASTY}
    f = facts(
        [2],
        equivalence={"gloo-2": ladder},
        first_texts={"gloo-2": [NASTY, NASTY]},
        provenance={"gloo-2": provenance_of(2, machine=machine, sync=NASTY)},
        baseline_provenance=provenance_of(1, machine=machine),
    )
    read = Reader(to_html(page_of(f), pictures(tmp_path)))
    assert not {"script", "em", "a"} & {*read.tags}
    assert "e" not in read.texts
    # a check's name (twice) and detail, a verdict, two ranks, machine and strategy
    assert read.texts.count(SHOWN) == 8
    # the headline names the strategy
    assert any(SHOWN in " ".join(one.split()) for one in read.alts)
    breach = markdown(
        "breach.md",
        text=NASTY,
        breaches=[dict.fromkeys(("run", "check", "detail"), NASTY)],
        verdicts={NASTY: NASTY},
        equivalence={NASTY: {"rests_on": NASTY}},
    )
    read = Reader(to_html(breach, tmp_path))
    assert not {"script", "a", "em", "code"} & {*read.tags}
    assert read.texts.count(SHOWN) == 7


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"])))
@example("__0__")
@example("of gloo-2, a witness")
def test_a_cell_shows_any_text(text: str) -> None:
    html = to_html(Markup(f"| x |\n|---|\n| {escaped(text)} |"), Path())
    whole = "".join(Reader(html).texts).rstrip("\n")
    assert whole.rsplit("\n", 1)[-1] == (" ".join(text.split()) or "x")


def test_html_carries_its_pictures_and_colors(tmp_path: Path) -> None:
    html = to_html(page_of(facts([1, 2])), pictures(tmp_path))
    # base64 of the six bytes
    assert html.count('src="data:image/png;base64,cGl4ZWxz"') == 3
    assert html.count('src="data:image/svg+xml;base64,cGl4ZWxz"') == 1
    assert "http" not in html
    for outcome in ("equal", "near", "absent"):
        assert f'<td class="{outcome}">' in html


@pytest.mark.parametrize("world_sizes", [[1], [1, 2, 4]])
def test_page_answers_its_questions(world_sizes: list[int]) -> None:
    f = facts(world_sizes)
    text = page_of(f)
    titles = re.findall(r"^## (.+)$", text, flags=re.MULTILINE)
    assert len(titles) == 10
    # each question has an answer, in its heading or as the title of a chart
    for title in titles[:-2]:
        assert title.partition("? ")[2] or f"## {title}\n\n![" in text, title
    assert text.count("\n**Try next:** ") == len(titles) - 2
    assert f"![{sentence('headline', f)}](scaling.png)" in text
    for run in f.provenance:
        assert f"| {run} |" in text
    for rows in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", r)) for r in rows.splitlines()}) == 1
    assert ("The all-reduce of a step lasts" in text) == (max(world_sizes) > 1)


def test_checks_are_grouped_by_question_and_folded_if_not_run() -> None:
    own = {"replay_buffers": rung("not run", detail="none"), "mine": rung("equal")}
    text = page_of(facts([2], equivalence={"gloo-2": ladder_of(2) | own}))
    shown, _, folded = text.partition("not run here</summary>")
    _, *groups = shown.split("\n| **")
    assert "| ranks: " in next(one for one in groups if one.startswith("Do all ranks"))
    assert groups[-1].startswith("Other checks** |  |\n| mine | = equal |\n")
    assert "| replay_buffers: " not in shown
    assert "against the replay | none |\n" in folded


def test_studies_of_another_model_are_left_out() -> None:
    other = studied(origin=origin(model=MODEL | {"n_layer": 2}))
    f = facts([1, 2], ladder_study=other)
    text = page_of(f)
    why = "the result was measured with n_layer 2, but here it is 4"
    assert f"not shown: {why}" in text
    assert "And with more processes" not in text
    assert "## And on two hosts?" in text
    assert f"torch 2.13.0+cpu. {UNCHANGED}" in text
    assert "| sum for mean | a project #1 | \\~ looks right | ✓ replay |" in text
    assert "| stops | a project #1 | ✗ training stops | ✗ not ranks |" in text


def test_runs_on_gpus_have_a_row() -> None:
    f = facts([1, 2])
    gpu = provenance_of(1, machine=MACHINE | {"gpu": "A GPU"}, backend="nccl")
    alone = f.account[f.account["run"] == "gloo-1"]
    several = facts(
        [1, 2],
        provenance={**f.provenance, "nccl-1": gpu},
        timing={**f.timing, "nccl-1": timing_of(1)},
        account=pd.concat([f.account, alone.assign(run="nccl-1")]),
        equivalence={**f.equivalence, "nccl-1": ladder_of(1)},
        first_texts={**f.first_texts, "nccl-1": ["a"]},
        losses={**f.losses, "nccl-1": f.losses["gloo-1"]},
    )
    assert "| 1 host, A GPU | 1 | 16,000 | - | - | - | undecided |" in page_of(several)
    assert "no run on a GPU" not in page_of(several)
    assert "no run on a GPU" in page_of(f)


def test_run_on_two_hosts_is_marked_wherever_it_is_named() -> None:
    near, far = map(page_of, (facts([1, 2]), on_two_hosts(facts([1, 2]), "gloo-2")))
    for start in ("| gloo-2 | 16,000.5 |", "| gloo-2 | undecided |", "| gloo-2 | 1 |"):
        assert start in near
        assert start not in far
        assert start.replace("gloo-2", "gloo-2 (2 hosts)") in far
    # the study of all-reduces was on one host
    assert "In isolation, an all" in near
    assert "In isolation, an all" not in far
    assert "Every run except gloo-2 (2 hosts) was measured on one machine," in far


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shutil.copy(PARAMS_FILE, tmp_path)
    write_json(tmp_path / "data/baseline/provenance.json", provenance_of(1))
    num_rounds = load_params(PARAMS_FILE).baseline.num_rounds
    table = rounds(arms([1, 2]), num_rounds=num_rounds)
    table.to_csv(tmp_path / "data/baseline/rounds.csv", index=False)
    measured = facts([1, 2])
    for run, world_size in (("gloo-1", 1), ("gloo-2", 2)):
        folder = tmp_path / "data/runs" / run
        write_json(folder / "provenance.json", provenance_of(world_size))
        measured.losses[run].to_csv(folder / "losses.csv", index=False)
        ranks = [{"first_text": f"Text {rank}."} for rank in range(world_size)]
        shards = tmp_path / f"data/shards/world-{world_size}"
        write_json(shards / "index.json", {"samples": 1234, "ranks": ranks})
    # gloo-4 remains from an earlier setting
    sizes = {"gloo-1": 1, "gloo-2": 2, "gloo-4": 4}
    metrics = tmp_path / "metrics"
    ladders = {run: ladder_of(size) for run, size in sizes.items()}
    write_json(metrics / "equivalence.json", ladders)
    timings = {run: timing_of(size) for run, size in sizes.items()}
    write_json(metrics / "timing.json", timings)
    measured.account.to_csv(metrics / "account.csv", index=False)
    studies = {"ladder": measured.ladder_study, "hosts": measured.hosts_study}
    for name, study in studies.items():
        study.table.to_csv(metrics / f"{name}.csv", index=False)
        write_json(metrics / f"{name}.json", study.origin)
    measured.collectives_study.to_csv(metrics / "collectives.csv", index=False)
    write_json(metrics / "zoo.json", bugs())
    return tmp_path


def test_stage_and_command_write_every_file(project: Path) -> None:
    metrics = project / "metrics"
    read = {path.name for path in metrics.iterdir()}
    report.main()
    made = {path.name for path in metrics.iterdir()} - read
    pictures = {"overview.svg", "scaling.png", "account.png", "losses.png"}
    tables = {"manifest.json", "summary.json", "scaling.csv", "losses.csv"}
    assert made == {"report.html", "report.md", *pictures, *tables}
    markdown = (metrics / "report.md").read_text()
    linked = re.findall(r"^!\[.*\]\((.+)\)$", markdown, flags=re.MULTILINE)
    assert len(linked) == 4
    assert set(linked) <= made
    assert "1,234 samples of text" in (metrics / "overview.svg").read_text()
    assert "gloo-4" not in markdown
    assert "Text 1." in markdown
    read = Reader((metrics / "report.html").read_text())
    assert read.tags.count("img") == 4
    header = (metrics / "scaling.csv").read_text().partition("\n")[0]
    speeds = "tokens_per_s_p5,tokens_per_s_p50,tokens_per_s_p95"
    assert header == f"arm,processes,threads,{speeds}"
    # and the command does what the stage does
    (project / "README.md").write_text("<!-- result -->\nold\n<!-- /result -->\n")
    # includes README.md, which must not change
    files = {path: path.read_bytes() for path in project.rglob("*") if path.is_file()}
    for path in metrics.glob("*.png"):
        path.unlink()
    code, text = output_of("report", "--json")
    told = json.loads(text)
    assert code == 0
    assert told["headline"].startswith("2 processes: faster than one process")
    again = {path: path.read_bytes() for path in project.rglob("*") if path.is_file()}
    assert again == files
    code, text = output_of("report", "--readme")
    assert (code, text.splitlines()) == (0, [*told.values()])
    assert "| 2 processes, DDP | 2 | 1 | " in (project / "README.md").read_text()


@pytest.mark.parametrize(
    ("file", "old", "new", "line"),
    [
        ("metrics/timing.json", "stragglers", "s", "json: damaged.*'stragglers'"),
        ("metrics/equivalence.json", '"passed"', '"fine"', "json: damaged.*'fine'"),
        ("data/baseline/rounds.csv", "\n4,", "\n3,", "rounds.csv: dam.*not 18 rounds"),
        ("data/runs/gloo-2/losses.csv", "\n7,", "\n8,", "not one row for each of "),
        ("metrics/account.csv", "optimizer_ms", "o", "no row of g.*, optimizer_ms"),
        ("data/runs/gloo-2/provenance.json", '"sync"', '"s"', "json: damaged.*no sync"),
        ("metrics/account.csv", "20.0,", "2o.0,", "account.csv: damaged"),
        ("data/baseline/rounds.csv", "gloo-2,", "gloo-3,", "every arm needs at le"),
    ],
)
def test_damaged_files_are_one_line(
    project: Path, file: str, old: str, new: str, line: str
) -> None:
    path = project / file
    whole = path.read_text()
    path.write_text(whole.replace(old, new))
    assert path.read_text() != whole
    with pytest.raises(UserError, match=line):
        report.main()


def test_nothing_is_published_after_a_breach(project: Path) -> None:
    broken = ladder_of(2) | {"ranks": rung("breach", detail="tensor x differs")}
    ladders = {"gloo-1": ladder_of(1), "gloo-2": broken}
    write_json(project / "metrics/equivalence.json", ladders)
    for publish in (report.main, lambda: answer(Namespace(readme=True))):
        with pytest.raises(EvidenceError, match="gloo-2: ranks: tensor x differs"):
            publish()
    assert not (project / "metrics/summary.json").exists()
