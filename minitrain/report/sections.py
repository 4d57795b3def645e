"""The five questions of the report, and what the measurements answer.

Titles and paragraphs are composed from numbers; what to try next is the reader's turn.
"""

from minitrain.report.account_words import account_headline
from minitrain.report.instruments import how_it_was_timed
from minitrain.report.ladder import equivalence_sentences, same_headline
from minitrain.report.matrix import matrix
from minitrain.report.render import Markdown, paragraphs
from minitrain.report.results import Results
from minitrain.report.samples import spoken_sentences, spoken_table
from minitrain.report.section import Figure, Fold, Section
from minitrain.report.stragglers import straggler_sentence
from minitrain.report.studied_bugs import bugs_headline, bugs_sentences, bugs_table
from minitrain.report.tables import (
    account_table,
    rank_table,
    rung_table,
    scaling_table,
    timing_table,
    verdict_table,
)
from minitrain.report.words import (
    Finding,
    account_notes,
    headline,
    losses_headline,
    speed_notes,
)

SCALING_PNG, ACCOUNT_PNG, LOSSES_PNG = "scaling.png", "account.png", "losses.png"


def same(results: Results) -> Section:
    """Whether the runs computed the same."""
    return Section(
        name="same",
        question="The same?",
        finding=same_headline(results),
        matrix=matrix(results),
        paragraphs=[
            f"{equivalence_sentences(results)} Equal bits come from computing the same "
            "in the same order: a replay does. The witness and one process that takes "
            "the whole batch add in other orders, so that rounding differs."
        ],
        try_next=Markdown(
            "In params.yaml add a number of processes to `gloo.world_sizes`, say "
            "`[1, 2, 4]`, write down which rows of the new column will have an equals "
            "sign, and run `.venv/bin/dvc repro`."
        ),
        folds=[
            Fold("What each verdict rests on", verdict_table(results)),
            Fold("All comparisons, with their figures", rung_table(results)),
            Fold("What each rank read first, and its final state", rank_table(results)),
        ],
    )


def speed(results: Results, finding: Finding) -> Section:
    """How fast several processes are beside one."""
    title = headline(finding)
    return Section(
        name="speed",
        question="How fast?",
        finding=title,
        figure=Figure(SCALING_PNG, title),
        paragraphs=[speed_notes(finding)],
        try_next=Markdown(
            "Double `train.global_batch_size`, write down whether several processes "
            "come nearer to their ceiling, and run `.venv/bin/dvc repro`; "
            "`.venv/bin/dvc metrics diff` shows what came of it."
        ),
        folds=[
            Fold("The speed of every arm", scaling_table(results, finding.strategy))
        ],
    )


def where_time_goes(results: Results, finding: Finding) -> Section:
    """What a step spends its time on."""
    title = account_headline(finding)
    said = [account_notes(finding), *_stragglers(results), *_alone(results)]
    return Section(
        name="time",
        question="Where does the time go?",
        finding=title,
        figure=Figure(ACCOUNT_PNG, title),
        paragraphs=[" ".join(filter(None, said))] if any(said) else [],
        try_next=Markdown(
            "Set `train.sync` to `per_parameter`, which sends every tensor by itself. "
            "Write down which part of a step will grow, and whether the bits change; "
            "then run `.venv/bin/dvc repro`."
        ),
        folds=[
            Fold("The parts of a step", account_table(results)),
            Fold("The steps of each run", timing_table(results)),
            Fold("How it was timed", paragraphs(how_it_was_timed(results, finding))),
        ],
    )


def learned(results: Results) -> Section:
    """Whether the losses are those of one training, and what the model says then."""
    title = losses_headline(results.losses)
    return Section(
        name="learned",
        question="Did they learn the same?",
        finding=title,
        figure=Figure(LOSSES_PNG, title),
        table=spoken_table(results.samples),
        paragraphs=[
            "The loss says how badly the model predicts the next byte: lower is "
            "better. All runs read the same batches from the same start, so their "
            "curves should lie on each other. Curves alone prove little: below is what "
            "they hide.",
            spoken_sentences(results.samples),
        ],
        try_next=Markdown(
            "Set `train.learning_rate` to 0.0006: will the last loss be lower, and "
            "will the verdicts change? `.venv/bin/dvc repro`, then "
            "`.venv/bin/dvc metrics diff`."
        ),
    )


def bugs(results: Results) -> Section:
    """What a bug would look like, by the study of injected ones."""
    return Section(
        name="bugs",
        question="What would a bug look like?",
        finding=bugs_headline(results.bugs),
        table=bugs_table(results.bugs),
        paragraphs=[bugs_sentences(results.bugs)],
        try_next=Markdown(
            "In `minitrain/train/worker.py` let `Worker.weighted` return `loss` in the "
            "place of `loss * share`: a mean of means. Which rows of the matrix will "
            "say no? `.venv/bin/dvc repro` ends with a breach; "
            "`git checkout minitrain/train/worker.py` mends it."
        ),
    )


def _stragglers(results: Results) -> list[str]:
    """A sentence on each run in which a rank could be waited for."""
    timing, made = results.timing, results.provenance
    several = [run for run in timing if made[run]["world_size"] > 1]
    return [
        straggler_sentence(results.label(run), timing[run]["stragglers"])
        for run in several
    ]


def _alone(results: Results) -> list[str]:
    made = results.provenance
    alone = [run for run in results.accounts if made[run]["world_size"] == 1]
    if not alone:
        return []
    return [
        f"One process ({', '.join(alone)}) has nobody to wait for: its wait is what a "
        "barrier itself costs."
    ]
