"""Publication: from what the stages measured to pictures, page, manifest and metric."""

import pandas as pd
from markupsafe import Markup

from minitrain.analysis.account import CLOSED_WITHIN
from minitrain.core.errors import EvidenceError
from minitrain.core.files import atomic_path, open_atomic, write_json
from minitrain.core.params import load_params
from minitrain.report.breach import breach_line, refuse
from minitrain.report.facts import PARTS, Facts
from minitrain.report.glossary import TERMS
from minitrain.report.manifest import manifest, summary
from minitrain.report.overview import draw_overview, overview
from minitrain.report.pictures import draw_account, draw_losses, draw_scaling
from minitrain.report.read import Project, read_equivalence, read_facts
from minitrain.report.render import markdown, sentence, to_html
from minitrain.report.studied import WHOLE, Hosts, Ladder, bare_allreduce
from minitrain.report.tables import (
    bugs_table,
    hosts_table,
    ladder_table,
    matrix,
    tables,
)

# what is published in the folder of results; after a breach not all of it
FILES = (
    "report.html",
    "report.md",
    "manifest.json",
    "summary.json",
    "scaling.csv",
    "losses.csv",
    "overview.svg",
    "scaling.png",
    "account.png",
    "losses.png",
)


def publish(project: Project) -> str:
    """Write the results of ``project`` -> the headline. Measures nothing.

    Raises:
        EvidenceError: A check breached; the breach was published instead.
        UserError: A run was not measured, or a file is damaged.
    """
    params, metrics = load_params(project.params), project.metrics
    equivalence = read_equivalence(project, params)
    if line := breach_line(equivalence):
        refuse(equivalence, metrics)
        raise EvidenceError(f"Breach: {line}")
    f = read_facts(project, params, equivalence)

    with open_atomic(metrics / "overview.svg") as file:
        file.write(draw_overview(f))
    with atomic_path(metrics / "scaling.png") as path:
        draw_scaling(f.scaling, sentence("headline", f), path, f.strategy)
    with atomic_path(metrics / "account.png") as path:
        accounts = {sentence("label", f, run): of for run, of in f.accounts.items()}
        draw_account(accounts, sentence("account_headline", f), path)
    with atomic_path(metrics / "losses.png") as path:
        draw_losses(f.losses, sentence("losses_headline", f), path)

    with open_atomic(metrics / "scaling.csv") as file:
        f.scaling.to_csv(file, index=False)
    losses = [table.assign(run=run) for run, table in f.losses.items()]
    with open_atomic(metrics / "losses.csv") as file:
        pd.concat(losses)[["run", "step", "loss"]].to_csv(file, index=False)
    write_json(metrics / "manifest.json", manifest(f))
    write_json(metrics / "summary.json", summary(f))
    page = report(f)
    with open_atomic(metrics / "report.md") as file:
        file.write(page)
    with open_atomic(metrics / "report.html") as file:
        file.write(to_html(page, metrics))
    return sentence("headline", f)


def report(f: Facts) -> Markup:
    """Return the one-page report in Markdown; its pictures lie beside it."""
    ladder, hosts = Ladder(f.ladder_study), Hosts(f.hosts_study)
    ladder_foreign = f.ladder_study.foreign(f.made)
    hosts_foreign = f.hosts_study.foreign(f.made)
    shown = tables(f)
    if not ladder_foreign:
        shown["ladder"] = ladder_table(ladder)
    if not hosts_foreign:
        shown["hosts"] = hosts_table(hosts, f)
    if f.bugs is not None:
        shown["bugs"] = bugs_table(f.bugs)
    bare = None
    if f.hosts(f.run) == 1 and f.made["sync"] in WHOLE:
        num_bytes = 4 * f.made["model_params"]
        bare = bare_allreduce(f.collectives_study, f.machine, f.world_size, num_bytes)
    names = ("headline", "account_headline", "losses_headline")
    return markdown(
        "report.md",
        f=f,
        **{name: sentence(name, f) for name in names},
        overview=overview(f),
        matrix=matrix(f),
        tables=shown,
        ladder=ladder,
        ladder_foreign=ladder_foreign,
        hosts=hosts,
        hosts_foreign=hosts_foreign,
        bare=bare,
        closed_within=CLOSED_WITHIN,
        PARTS=PARTS,
        TERMS=TERMS,
    )
