"""The one-page report, for someone who has never seen data-parallel training."""

from minitrain.report.numbers import counted, thousands
from minitrain.report.overview import overview_in_words
from minitrain.report.render import Markdown, markdown
from minitrain.report.results import Results
from minitrain.report.section import Figure, Page
from minitrain.report.sections import bugs, learned, same, speed, where_time_goes
from minitrain.report.shown_studies import shown_studies
from minitrain.report.tables import origin_table
from minitrain.report.terms import TERMS
from minitrain.report.words import Finding

OVERVIEW_SVG = "overview.svg"
TITLE = "Does training with several processes compute the same, and is it faster?"
# before the first number: whoever reads on knows what is compared
LEAD = (
    "A model learns in steps. In each it reads a batch of samples, works out which way "
    "every one of its parameters should move to predict them better (the gradients), "
    "and moves all of them a little. Data-parallel training shares that work out: "
    "every process holds a copy of the model and reads its own part of the batch; then "
    "all average their gradients, so that each copy takes the same step and the copies "
    "stay equal. Done right, it changes how long training takes, and nothing of what "
    "is learned. This page says whether that is so for what ran here."
)


def compose(results: Results, finding: Finding) -> Page:
    """The report; it expects its pictures in the folder that it is written to."""
    made = results.provenance[results.largest]
    runs = ", ".join(results.label(run) for run in results.provenance)
    return Page(
        title=TITLE,
        lead=LEAD,
        figure=Figure(OVERVIEW_SVG, overview_in_words(results)),
        caption=(
            f"One model of {thousands(made['model_params'])} parameters was trained "
            f"for {counted(made['num_steps'], 'step')} on the same data in each run: "
            f"{runs}. The number is that of processes. The picture shows "
            f"{results.label(results.largest)}."
        ),
        sections=[
            same(results),
            speed(results, finding),
            where_time_goes(results, finding),
            learned(results),
            bugs(results),
            *shown_studies(results),
        ],
        origin=_origin(results),
        origin_table=origin_table(results, finding),
    )


def page(results: Results, finding: Finding) -> Markdown:
    """The report in Markdown."""
    return as_markdown(compose(results, finding))


def as_markdown(composed: Page) -> Markdown:
    """The same page for whoever reads it on GitHub."""
    return markdown("report.md", page=composed, terms=TERMS)


def _origin(results: Results) -> str:
    largest, afar = results.largest, results.on_several_hosts
    if not afar:
        return f"Everything was measured on one machine; {largest} is meant."
    runs = ", ".join(results.label(run) for run in afar)
    return (
        f"Everything but {runs} was measured on one machine, on which the first ranks "
        "of these were, too: nothing is said of the machines of other hosts. "
        f"{results.label(largest)} is meant."
    )
