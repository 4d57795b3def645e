"""The ladder of one strategy after the other, for a model that somebody brings."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from minitrain.analysis.verdicts import VERDICTS
from minitrain.check.check import Ladder, check_data_parallel
from minitrain.core.errors import UserError
from minitrain.sync.catalog import STRATEGIES, guarantees_of

ALL = "all"


@dataclass
class Climbed:
    """``ladders`` by strategy, and why others were ``refused`` for this model."""

    ladders: dict[str, Ladder] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Whether each is proven; undecided is enough where no bits are promised."""
        return bool(self.ladders) and all(
            ladder.holds or (ladder.verdict == "undecided" and not _promises_bits(name))
            for name, ladder in self.ladders.items()
        )


def climb(sync: str, **given: Any) -> Climbed:
    """The ladders of ``sync``, a strategy or ``all``; ``given`` are arguments of
    :func:`check_data_parallel`.

    Raises UserError and RankError as that does; of all strategies, one that takes no
    such model is noted instead.
    """
    found = Climbed()
    names: Iterable[str] = STRATEGIES if sync == ALL else [sync]
    for name in names:
        try:
            ladder = check_data_parallel(sync=name, accept=VERDICTS, **given)
            found.ladders[name] = ladder
        except UserError as error:
            if sync != ALL:
                raise
            found.refused[name] = str(error)
    return found


def _promises_bits(name: str) -> bool:
    return "replay" in guarantees_of(name).promises
