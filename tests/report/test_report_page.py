"""The page, the manifest, and the stage that writes them."""

import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from project import PARAMS_FILE, ROOT
from report_inputs import (
    CONTRACT,
    MACHINE,
    account_of,
    arms,
    ladder_of,
    on_two_hosts,
    provenance_of,
    results,
    rounds,
    rung,
    samples,
    studied_collectives,
    timing_of,
    zoo,
)

from minitrain.cli.main import run as minitrain
from minitrain.core.errors import EvidenceError, UserError
from minitrain.core.params import load_params
from minitrain.report.manifest import manifest
from minitrain.report.page import compose, page
from minitrain.report.publish import FILES
from minitrain.report.render import escaped, markdown, table
from minitrain.report.results import Results, only_runs
from minitrain.report.studied_bugs import digest
from minitrain.report.summary import summary
from minitrain.report.tables import arm_in_words, cell, shortened
from minitrain.report.webpage import report_html, to_html
from minitrain.report.words import account_notes, find, lesson_notes, speed_notes
from stages import report

NASTY = '<script>alert(1)</script> & a | b *c* _d_ `e` [f](g) "h"\nnext'


SHOWN = " ".join(NASTY.split())


def refusal(text: str) -> str:
    """A page with ``text`` in a paragraph and in two tables."""
    one = table([text], [[text]])
    return markdown("refused.md", said=text, breaches=one, verdicts=one)


def page_of(measured: Results) -> str:
    return page(measured, find(measured))


def html_of(measured: Results, folder: Path) -> str:
    return report_html(compose(measured, find(measured)), pictures(folder))


def manifest_of(measured: Results) -> dict[str, Any]:
    return manifest(measured, find(measured))


class Reader(HTMLParser):
    """Collects the tags and the text of a page, and checks that tags are paired."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.attributes: list[dict[str, str | None]] = []
        self.open: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.append(dict(attrs))
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def attributes_of(self, tag: str) -> list[dict[str, str | None]]:
        pairs = zip(self.tags, self.attributes, strict=True)
        return [attributes for name, attributes in pairs if name == tag]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def pictures(folder: Path) -> Path:
    for name in ("overview.svg", "scaling.png", "account.png", "losses.png"):
        (folder / name).write_bytes(b"pixels")
    return folder


def nasty_results() -> Results:
    """A nasty text wherever one can come from people or machines."""
    ladder = ladder_of(2) | {"verdict": "proven", "rests_on": NASTY}
    ladder[NASTY] = rung("equal", detail=NASTY)
    machine = MACHINE | {"cpu": NASTY}
    return results(
        [2],
        equivalence={"gloo-2": ladder},
        first_texts={"gloo-2": [NASTY, NASTY]},
        samples=samples(before=[NASTY], after={"gloo-2": [NASTY]}, same_texts=None),
        provenance={"gloo-2": provenance_of(2, machine=machine, sync=NASTY)},
        baseline_provenance=provenance_of(1, machine=machine),
    )


def test_html_escapes_everything(tmp_path: Path) -> None:
    read = Reader(html_of(nasty_results(), tmp_path))
    assert not {"script", "em"} & {*read.tags}
    # what is linked and set as code is our own
    links = {str(attributes["href"]) for attributes in read.attributes_of("a")}
    assert links
    assert {link for link in links if not link.startswith("#term-")} == set()
    assert "e" not in read.texts
    # of the verdict, a rung's name (twice) and detail, two ranks, machine and strategy;
    # two texts of the model
    assert read.texts.count(SHOWN) == 10
    # the headline names the strategy
    words = [" ".join(str(one["alt"]).split()) for one in read.attributes_of("img")]
    assert any(SHOWN in one for one in words)
    read = Reader(to_html(refusal(NASTY)))
    assert not {"script", "a", "em", "code"} & {*read.tags}
    assert read.texts.count(SHOWN) == 5


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"])))
@example("__0__")
@example("of gloo-2, a witness")
def test_a_cell_shows_any_text(text: str) -> None:
    html = to_html(table(["x"], [[text]]))
    whole = "".join(Reader(html).texts).rstrip("\n")
    assert whole.rsplit("\n", 1)[-1] == (" ".join(text.split()) or "x")


def test_html_carries_its_pictures(tmp_path: Path) -> None:
    html = html_of(results([1, 2]), tmp_path)
    # base64 of the six bytes
    assert html.count('src="data:image/png;base64,cGl4ZWxz"') == 3
    assert html.count('src="data:image/svg+xml;base64,cGl4ZWxz"') == 1
    assert 'name="viewport"' in html
    assert "@media print" in html
    assert "http" not in html
    title = "Does training with several processes compute the same, and is it faster?"
    assert f"<title>{title}</title>" in html
    assert f"<h1>{title}</h1>" in html


def test_markdown_escapes_everything() -> None:
    written = refusal(NASTY)
    assert not re.search(r"(?<!\\)<", written)
    assert r"a \| b \*c\* \_d\_ \`e\` \[f\](g)" in written
    header, rule, row = table([NASTY], [[NASTY]]).splitlines()
    assert header == row
    assert rule == "|---|"


def test_markdown_leaves_names_alone() -> None:
    assert escaped("one_process ran gloo-2") == "one_process ran gloo-2"


@pytest.mark.parametrize("world_sizes", [[1], [2, 4], [1, 2, 4]])
def test_page_tells_the_whole_story(world_sizes: list[int]) -> None:
    measured = results(world_sizes)
    text, found = page_of(measured), find(measured)
    titles = re.findall(r"^## (.+)$", text, flags=re.MULTILINE)
    assert [title.partition("?")[0] for title in titles] == [
        "The same",
        "How fast",
        "Where does the time go",
        "Did they learn the same",
        "What would a bug look like",
        "And with more processes, other optimizers, other numbers",
        "And on two hosts",
        "What the words mean",
        "Machine and origin",
    ]
    # each question has its answer beside it, and all but the last something to try
    assert all(title.partition("? ")[2] for title in titles[:-2])
    assert text.count("\n**Try next:** ") == len(titles) - 2
    assert speed_notes(found) in text.splitlines()
    assert account_notes(found) in text
    for run in measured.provenance:
        assert f"| {run} |" in text
    for rows in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", r)) for r in rows.splitlines()}) == 1


def test_data_parallelism_is_explained_before_the_first_number(tmp_path: Path) -> None:
    measured = results([1, 2])
    for text in (page_of(measured), "".join(body_of(html_of(measured, tmp_path)))):
        before = re.split(r"\d", text)[0]
        for word in ("batch", "copy of the model", "average their gradients"):
            assert word in before
    # and nothing but that paragraph and the title stands above the picture
    above, _, _ = page_of(measured).partition("![")
    assert len(above.split("\n\n")) == 3


def body_of(html: str) -> list[str]:
    """What is read on the page."""
    return Reader(html.partition("<body>")[2].partition("</body>")[0]).texts


def test_words_are_linked_where_they_are_used_first(tmp_path: Path) -> None:
    html = html_of(results([1, 2]), tmp_path)
    links = re.findall(r'<a href="#([\w-]+)">([^<]+)</a>', html)
    anchors = [anchor for anchor, _ in links]
    assert len(anchors) == len({*anchors})
    targets = re.findall(r'<dt id="([\w-]+)">', html)
    assert {*anchors} <= {*targets}
    assert len(targets) == len({*targets})
    # the words that nobody can do without, each before any other use of it
    said = dict(links)
    for anchor in ("step-batch", "gradients", "rank-world-size", "replay", "witness"):
        word = said[f"term-{anchor}"]
        paragraphs = re.findall(r"<p(?: class=\"\w+\")?>(.*?)</p>", html, re.DOTALL)
        first = next(p for p in paragraphs if re.search(rf"\b{word}\b", p))
        link = f'<a href="#term-{anchor}">{word}</a>'
        assert link in first
        before, _, _ = first.partition(link)
        assert not re.search(rf"\b{word}\b", re.sub("<[^>]*>", "", before)), word


def test_names_of_runs_are_not_broken(tmp_path: Path) -> None:
    html = html_of(results([1, 2]), tmp_path)
    body = re.sub(r'alt="[^"]*"', "", html.partition("<body>")[2])
    assert "gloo-2" in body
    assert not re.search(r'(?<!<span class="kept">)gloo-\d', body)
    # nor numbers from their units
    assert '(<span class="kept">100.0 ms</span>)' in body
    others = body.replace("5-95 % interval", "")
    assert re.search(r"[\d.,]+ %", others)
    assert not re.search(r"(?<![\d.,>])[\d.,]+ %", others)
    assert re.search(r"\.kept\b[^}]*white-space: nowrap", html)


def test_folds_are_closed_and_the_matrix_is_open(tmp_path: Path) -> None:
    html = html_of(results([1, 2]), tmp_path)
    folds = re.findall(r"<details>\n?<summary>|<details><summary>", html)
    assert len(folds) == html.count("<details") > 4
    opened, _, _ = html.partition("<details>")
    assert '<table class="matrix">' in opened
    # never by its color alone
    assert '<td class="near"><span class="mark">≈</span> 3.1e-06</td>' in opened
    assert '<span class="verdict undecided">? undecided</span>' in opened


def test_rows_that_nobody_ran_are_muted(tmp_path: Path) -> None:
    measured = results([1, 2])
    measured.equivalence["gloo-2"]["ranks"] = rung("not run")
    html = html_of(measured, tmp_path)
    muted = re.findall(r'<tr class="muted"><th scope="row">(.*?)</th>', html)
    assert muted == ["final state of every rank, against rank 0"]


def test_page_has_a_line_on_ddps_own_log_where_there_is_one() -> None:
    measured = results([1, 2])
    text = page_of(measured)
    assert "20.5 ms and 70.5 ms by DDP's own log, 21.5 ms and 70.0 ms by" in text
    says = measured.timing["gloo-2"]["ddp_says"]
    for difference, verdict in ((4.9, "agree"), (-5.1, "do not agree")):
        says["forward_ms"]["difference_pct"] = difference
        text = page_of(measured)
        assert f"they {verdict} within" in text
    for part in says.values():
        part["difference_pct"] = None
    assert "own log" not in page_of(measured)


def test_gap_that_rounds_to_none_has_no_sign() -> None:
    measured = results([1, 2])
    for run, gap in (("gloo-1", -0.04), ("gloo-2", -0.06)):
        measured.timing[run]["account"]["gap_pct"] = gap
    assert "| sum against that step | 0.0 % | -0.1 % |" in page_of(measured)


def test_page_shows_unknown_rungs_by_name() -> None:
    extra = {"gloo-2": ladder_of(2) | {"float64": {"verdict": "within tolerance"}}}
    extra["gloo-2"]["float64"]["max_abs_diff"] = 2e-14
    text = page_of(results([2], equivalence=extra))
    assert "| gloo-2 | float64 | - | - | 2e-14 | within tolerance |  |" in text


def test_arms_in_words() -> None:
    assert arm_in_words("gloo-2", "DDP") == "2 processes, DDP"
    assert arm_in_words("gloo-1-timed", "shm") == "1 process, shm with timing hook"
    assert arm_in_words("gloo-4-no-sync", "shm").startswith("4 processes, no comm")
    again = ", measured again (A/A)"
    assert arm_in_words("one_process-again", "DDP") == f"one process{again}"
    assert arm_in_words("gloo-2-again", "DDP") == f"2 processes, DDP{again}"
    silent = arm_in_words("gloo-2-no-sync", "DDP")
    assert arm_in_words("gloo-2-no-sync-again", "DDP") == silent + again


def test_cells() -> None:
    assert cell(None, ".1f") == "-"
    assert cell(0, ".1f") == "0"
    assert cell(1234.56, ",.1f") == "1,234.6"
    assert cell([310.0, None], ".1f") == "310.0, -"
    assert shortened("x" * 81) == "x" * 77 + "..."
    assert shortened("x" * 80) == "x" * 80


def test_manifest_keeps_the_contract() -> None:
    measured = results([1, 2])
    summary = manifest_of(measured)
    assert list(summary)[: len(CONTRACT)] == CONTRACT
    assert summary["world_size"] == 2
    assert summary["model_params"] == 870_000
    assert summary["allreduce_p50_ms"] == 12.5
    assert summary["byte_equivalent"] is True
    one, two = summary["tokens_per_sec_1proc"], summary["tokens_per_sec_2proc"]
    assert one == round(measured.baseline.tokens_per_s("one_process"), 1)
    assert two == round(measured.baseline.tokens_per_s("gloo-2"), 1)
    assert summary["lesson_notes"] == lesson_notes(find(measured))
    assert f"{two:,.0f} against {one:,.0f}" in summary["lesson_notes"]
    assert summary["machine"] == MACHINE
    json.dumps(summary, allow_nan=False)


@pytest.mark.parametrize(
    ("world_sizes", "one", "two"),
    [([1], True, False), ([2], False, True), ([1, 4], True, False)],
)
def test_manifest_is_null_where_nothing_was_run(
    world_sizes: list[int], one: bool, two: bool
) -> None:
    summary = manifest_of(results(world_sizes))
    assert (summary["tokens_per_sec_1proc"] is not None) == one
    assert (summary["tokens_per_sec_2proc"] is not None) == two
    assert (summary["allreduce_p95_ms"] is None) == (world_sizes == [1])
    assert summary["byte_equivalent"] is (None if world_sizes == [1] else True)


BY_ITSELF = "By itself, one of 4.0 MB among 2 processes takes 4.0 ms over gloo"


@pytest.mark.parametrize(
    ("studied", "sync", "shown"),
    [
        # 870,000 parameters are 3.48 MB: 4 MB is nearest, at a microsecond for each kB
        (studied_collectives(), "ddp", True),
        (studied_collectives(), "fp16_compress", False),
        (studied_collectives(cpu="Another CPU"), "ddp", False),
        (studied_collectives(cores=4), "ddp", False),
        (studied_collectives(torch="2.12.0+cpu"), "ddp", False),
        (studied_collectives().query("num_bytes == 4"), "ddp", False),
        (studied_collectives().query("world_size == 4"), "ddp", False),
        (studied_collectives().query("backend == 'shm'"), "ddp", False),
    ],
)
def test_all_reduce_by_itself_stands_beside_that_of_a_step(
    studied: pd.DataFrame, sync: str, shown: bool
) -> None:
    """Only where it was measured on this machine, for as much as a step sends."""
    made = {"gloo-2": provenance_of(2, sync=sync)}
    text = page_of(results([2], provenance=made, studied_collectives=studied))
    assert "it holds waiting for the other ranks, and for a core." in text
    assert (BY_ITSELF in text) is shown
    assert ("By itself" in text) is shown


@pytest.mark.parametrize(("world_sizes", "said"), [([1, 2], True), ([2, 4], False)])
def test_wait_of_one_process_is_no_straggler(
    world_sizes: list[int], said: bool
) -> None:
    measured = results(world_sizes)
    alone = account_of(2) | {"wait_ms": 0.27}
    for run, timing in measured.timing.items():
        timing["account"] = alone
        assert run in measured.accounts
    text = page_of(measured)
    line = "One process (gloo-1) has nobody to wait for: its wait is what a barrier"
    assert (line in text) is said


def test_every_run_has_its_verdict_and_what_it_rests_on() -> None:
    ladders = {f"gloo-{size}": ladder_of(size) for size in (1, 2)}
    rests = "equal bits, and the witness"
    ladders["gloo-2"] |= {"verdict": "proven", "rests_on": rests}
    measured = results([1, 2], equivalence=ladders)
    published = manifest_of(measured)
    assert published["verdict"] == "proven"
    assert published["verdicts"] == {
        "gloo-1": {"verdict": "undecided", "rests_on": None},
        "gloo-2": {"verdict": "proven", "rests_on": rests},
    }
    numbers = summary(measured, find(measured))
    assert numbers["gloo-1"]["verdict"] == "undecided"
    assert numbers["gloo-2"]["verdict"] == "proven"
    text = page_of(measured)
    assert f"| gloo-2 | proven | {rests} |" in text
    assert "| gloo-1 | undecided | - |" in text


def test_manifest_names_the_code_of_both_measurements() -> None:
    there = provenance_of(1, code_sha256="cd" * 32)
    published = manifest_of(results([1, 2], baseline_provenance=there))
    assert published["code_sha256"] == "ab" * 32
    assert published["baseline_code_sha256"] == "cd" * 32


def test_only_runs() -> None:
    found = {"gloo-4": 4, "gloo-2": 2, "gloo-1": 1}
    assert only_runs(found, ["gloo-1", "gloo-2"], "f.json") == {
        "gloo-1": 1,
        "gloo-2": 2,
    }
    with pytest.raises(UserError, match=r"f\.json: no run nccl-1; it holds gloo-4, "):
        only_runs(found, ["nccl-1"], "f.json")


MARKED = """# Mine

<!-- result -->
old
<!-- /result -->

<!-- made-by -->
<!-- /made-by -->
"""


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the data that are deps of the stage, for the default parameters;
    nothing else, no code of other stages or studies.
    """
    monkeypatch.chdir(tmp_path)
    shutil.copy(PARAMS_FILE, tmp_path)
    write(tmp_path / "data/baseline/provenance.json", provenance_of(1))
    table = rounds(
        arms([1, 2]), num_rounds=load_params(PARAMS_FILE).baseline.num_rounds
    )
    table.to_csv(tmp_path / "data/baseline/rounds.csv", index=False)
    measured = results([1, 2])
    for run, world_size in (("gloo-1", 1), ("gloo-2", 2)):
        folder = tmp_path / "data/runs" / run
        write(folder / "provenance.json", provenance_of(world_size))
        measured.losses[run].to_csv(folder / "losses.csv", index=False)
        ranks = [{"first_text": f"Text {rank}."} for rank in range(world_size)]
        shards = tmp_path / f"data/shards/world-{world_size}"
        write(shards / "index.json", {"samples": 1234, "ranks": ranks})
    # gloo-4 is left over from an earlier setting
    sizes = {"gloo-1": 1, "gloo-2": 2, "gloo-4": 4}
    metrics = tmp_path / "metrics"
    ladders = {run: ladder_of(size) for run, size in sizes.items()}
    write(metrics / "equivalence.json", ladders)
    timings = {run: timing_of(size) for run, size in sizes.items()}
    write(metrics / "timing.json", timings)
    measured.account.to_csv(metrics / "account.csv", index=False)
    said = {run: ["Model speaks."] for run in sizes}
    write(metrics / "samples.json", samples(after=said))
    studies = {"ladder": measured.studied, "hosts": measured.studied_hosts}
    for name, study in studies.items():
        study.table.to_csv(metrics / f"{name}.csv", index=False)
        write(metrics / f"{name}.json", study.origin)
    (tmp_path / "README.md").write_text(MARKED)
    measured.studied_collectives.to_csv(metrics / "collectives.csv", index=False)
    write(metrics / "zoo.json", digest(zoo()))
    return tmp_path


def test_stage_writes_every_file(project: Path) -> None:
    report.main()
    metrics = project / "metrics"
    made = {path.name for path in metrics.iterdir()}
    assert made == {
        "equivalence.json",
        "timing.json",
        "account.csv",
        "collectives.csv",
        "hosts.csv",
        "hosts.json",
        "ladder.csv",
        "ladder.json",
        "samples.json",
        "zoo.json",
        "scaling.csv",
        "overview.svg",
        "scaling.png",
        "account.png",
        "losses.csv",
        "losses.png",
        "manifest.json",
        "summary.json",
        "report.md",
        "report.html",
    }
    markdown = (metrics / "report.md").read_text()
    linked = re.findall(r"^!\[.*\]\((.+)\)$", markdown, flags=re.MULTILINE)
    assert len(linked) == 4
    assert set(linked) <= made
    assert "1,234 samples of text" in (metrics / "overview.svg").read_text()
    assert "gloo-4" not in markdown
    readme = (project / "README.md").read_text()
    assert "| 2 processes, DDP | 2 | 1 | " in readme
    assert "old" not in readme
    assert "- `train.py`: made by code " in readme
    assert "Text 1." in markdown
    assert "| after, gloo-1 and gloo-2 | Model speaks. |" in markdown
    read = Reader((metrics / "report.html").read_text())
    assert read.tags.count("img") == 4
    header = (metrics / "scaling.csv").read_text().partition("\n")[0]
    speeds = "tokens_per_s_p5,tokens_per_s_p50,tokens_per_s_p95"
    assert header == f"arm,processes,threads,{speeds}"


def test_stage_repeats_itself(project: Path) -> None:
    def content() -> dict[str, bytes]:
        report.main()
        return {path.name: path.read_bytes() for path in Path("metrics").iterdir()}

    assert content() == content()


def test_bugs_of_the_zoo_are_shown_where_its_code_is_todays(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said() -> str:
        report.main()
        return (project / "metrics/report.md").read_text()

    # no study is here, so nobody knows; then other code is
    assert "left out, since other code made it" in said()
    monkeypatch.setattr("minitrain.report.publish.code_sha256", lambda script: "ef")
    assert "left out, since other code made it" in said()
    monkeypatch.setattr(
        "minitrain.report.publish.code_sha256",
        lambda script: "12" * 32 if script == Path("studies/zoo/inject.py") else None,
    )
    assert "| sum for mean |" in said()


def test_a_readme_of_ones_own_is_left_alone(project: Path) -> None:
    (project / "README.md").write_text("# Mine\n")
    report.main()
    assert (project / "README.md").read_text() == "# Mine\n"
    (project / "README.md").unlink()
    report.main()
    assert not (project / "README.md").exists()


def test_stage_refuses_a_run_that_says_nothing(project: Path) -> None:
    """But for a model that cannot be sampled, which says why."""
    file = project / "metrics/samples.json"
    write(file, samples(after={"gloo-1": ["a"]}, same_texts=None))
    with pytest.raises(UserError, match=r"metrics/samples\.json: no run gloo-2"):
        report.main()
    write(file, samples(mute="it has no logits", before=[], after={}))
    report.main()
    markdown = (project / "metrics/report.md").read_text()
    assert "The model cannot be sampled: it has no logits." in markdown


def test_stage_refuses_a_run_that_was_not_measured(project: Path) -> None:
    write(project / "metrics/timing.json", {"gloo-1": timing_of(1)})
    with pytest.raises(UserError, match=r"metrics/timing\.json: no run gloo-2"):
        report.main()


def test_timings_of_an_older_version_are_one_line(project: Path) -> None:
    timings = {f"gloo-{size}": timing_of(size) for size in (1, 2)}
    del timings["gloo-2"]["stragglers"]
    write(project / "metrics/timing.json", timings)
    older = r"timing\.json: damaged, or not of this version \(.*no stragglers of gloo-2"
    with pytest.raises(UserError, match=older):
        report.main()


def test_command_does_what_the_stage_does(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report.main()
    made = {path: path.read_bytes() for path in project.rglob("*") if path.is_file()}
    for path in (project / "metrics").glob("*.png"):
        path.unlink()
    (project / "README.md").write_text(MARKED)
    capsys.readouterr()
    assert minitrain(["report", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    measured = json.loads((project / "metrics/manifest.json").read_text())
    assert told["headline"].startswith("2 processes: faster than one process")
    assert measured["lesson_notes"]
    assert {Path(file).name for file in told["files"]} == {*FILES}
    again = {path: path.read_bytes() for path in project.rglob("*") if path.is_file()}
    assert again == made
    assert minitrain(["report"]) == 0
    assert capsys.readouterr().out.splitlines() == [told["headline"], *told["files"]]


def test_command_takes_other_folders(project: Path) -> None:
    (project / "data").rename(project / "built")
    (project / "metrics").rename(project / "results")
    assert minitrain(["report", "--data", "built", "--metrics", "results"]) == 0
    assert (project / "results/report.html").is_file()


def test_command_publishes_a_breach(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = ladder_of(2) | {"ranks": rung("breach", detail="tensor x differs")}
    ladders = {"gloo-1": ladder_of(1), "gloo-2": broken}
    write(project / "metrics/equivalence.json", ladders)
    line = "gloo-2: ranks: tensor x differs"
    assert minitrain(["report", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["headline"] == f"Breach: {line}"
    assert "metrics/report.md" in told["files"]
    assert "metrics/losses.png" not in told["files"]
    assert line in (project / "metrics/report.md").read_text()
    assert line in (project / "README.md").read_text()
    with pytest.raises(EvidenceError, match=line):
        report.main()


def test_command_outside_of_a_project_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((UserError, OSError), match=r"params\.yaml"):
        minitrain(["report"])


def test_report_is_cheap_to_import() -> None:
    code = "import sys, stages.report; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_run_on_two_hosts_is_marked_wherever_it_is_named() -> None:
    measured = results([1, 2, 4])
    near, far = (page_of(m) for m in (measured, on_two_hosts(measured, "gloo-4")))
    for start in (
        "| gloo-4 | 16,000.5 |",
        "| gloo-4 | undecided |",
        "| gloo-4 | 3 | Rank 3",
        "No straggler is seen in gloo-4: ",
        "The verdict on gloo-4 is",
        "a step of gloo-4 without instruments",
    ):
        marked = start.replace("gloo-4", "gloo-4 (2 hosts)")
        assert (near.count(start) > 0, near.count(marked)) == (True, 0)
        assert (far.count(start), far.count(marked) > 0) == (0, True)
    assert "| gloo-1 | gloo-2 | gloo-4 (2 hosts) |" in far
    # no table of collectives on one host says what that run waits for
    assert "By itself, one of" in near
    assert "By itself, one of" not in far
    assert "Everything was measured on one machine; gloo-4 is meant." in near
    assert "Everything but gloo-4 (2 hosts) was measured on one machine," in far
    assert "host" not in near.partition("## And on two hosts?")[0]
