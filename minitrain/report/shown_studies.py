"""What studies measured, each in a section of its own, where it is of what is here."""

from collections.abc import Iterator, Mapping
from typing import Any

from minitrain.report.render import Markdown, escaped
from minitrain.report.results import Results
from minitrain.report.section import Fold, Section
from minitrain.report.studied_hosts import studied_hosts
from minitrain.report.studied_ladder import studied_ladder

MADE_BY = "What made it"
LEFT_OUT = {
    "ladder": "More processes, other optimizers and number types are left out",
    "network": "Two hosts are left out",
}


def shown_studies(results: Results) -> Iterator[Section]:
    """A section for each study, and one that says which are left out, and why."""
    made = results.provenance[results.largest]
    ladder, hosts = studied_ladder(results.studied, made), studied_hosts(results)
    if ladder["foreign"] is None:
        yield _more_processes(ladder)
    if hosts["foreign"] is None:
        yield _two_hosts(hosts)
    foreign = {"ladder": ladder["foreign"], "network": hosts["foreign"]}
    if left_out := {name: why for name, why in foreign.items() if why}:
        yield _left_out(left_out)


def _more_processes(said: Mapping[str, Any]) -> Section:
    return Section(
        name="more",
        question="And with more processes, other optimizers, other numbers?",
        finding=said["outcome"].removesuffix("."),
        table=said["table"],
        paragraphs=[
            "The study studies/ladder trained the same model otherwise. An equals sign "
            "means equal to the last bit; a number is the largest difference from one "
            "process that computes the whole batch at once."
        ],
        try_next=Markdown(
            "Add a number of processes to `world_sizes` in "
            "`studies/ladder/params.yaml` and run `make study-ladder`."
        ),
        folds=[Fold(MADE_BY, escaped(said["made_by"]))],
    )


def _two_hosts(said: Mapping[str, Any]) -> Section:
    expected = ""
    if floor := said["allreduce_noise_floor"]:
        expected = (
            " As expected is what differs from it by no more than all-reduces of arms "
            f"that are the same from each other ({floor}), or what rounds measured "
            "less and more of."
        )
    # the title has the first sentence
    speeds = said["outcome"].removeprefix(f"{said['finding']}.")
    gpus = " No run on a GPU: nccl.world_sizes asks for none."
    return Section(
        name="hosts",
        question="And on two hosts?",
        finding=said["finding"],
        table=said["table"],
        paragraphs=[
            f"{speeds} The hosts are network namespaces on this machine, "
            "joined by links of these rates, and all processes share its cores. "
            "Expected is what the cost model says of the all-reduces of a step alone "
            "on their link (studies/prediction); measured also holds waiting for the "
            f"other rank, and for a core.{expected}{'' if said['on_gpus'] else gpus}"
        ],
        try_next=Markdown(
            "Give `links` in `studies/network/params.yaml` a rate between two of "
            "these, write down the speed that you expect, and run `make study-network`."
        ),
        folds=[Fold(MADE_BY, escaped(said["made_by"]))],
    )


def _left_out(why: Mapping[str, str]) -> Section:
    return Section(
        name="left-out",
        question="What is left out?",
        finding="Studies that were not made by what is here",
        paragraphs=[
            Markdown(
                f"{escaped(f'{LEFT_OUT[study]}: {reason}.')} `make study-{study}` "
                "measures them, `make` then shows them here."
            )
            for study, reason in why.items()
        ],
    )
