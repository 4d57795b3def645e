"""Consensus of ranks on where they all are, before they call for what needs all.

Where each rank holds a part of the parameters, to put these together is a collective in
the run's own group. A rank that is elsewhere would answer it with a collective of the
run, and both would hang, or abort. So each writes in a store where it is, and the first
to know decides for all, once: a rank that came too late must learn that it was.
"""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from minitrain.comm.torch_private import Store
from minitrain.recording.alarm import Alarm, against, unlike

# a set is most often there at once; a longer wait is not to take a core
POLL_S, FIRST_POLL_S = 0.005, 0.0001
# a store takes an empty text for a key that is not there
AGREED = "null"
SO = "; sharded tensors need all ranks, so the recording ends here"


def wait_until(is_done: Callable[[], bool], limit_s: float) -> bool:
    """Return whether something is done, as soon as it is, or after the limit."""
    deadline, pause = time.monotonic() + limit_s, FIRST_POLL_S
    while not is_done():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
        pause = min(2 * pause, POLL_S)
    return True


@dataclass
class Meetings:
    """Meetings of ``world_size`` ranks by a ``store``. Each rank comes to all, in the
    same order.
    """

    store: Store
    rank: int
    world_size: int
    timeout_s: float
    _number: int = field(default=0, init=False)
    _step: int = field(default=0, init=False)

    def come(self, place: str, step: int) -> Alarm | None:
        """Wait for the others, ``timeout_s`` at most. None if all came to this
        ``place`` of the run; else why not, which every rank hears that comes to this
        meeting, however late.
        """
        key = f"meeting {self._number}"
        try:
            self.store.set(f"at {self.rank}", json.dumps([self._number, place]))
            is_last = self.store.add(f"{key} came", 1) == self.world_size
            is_decided = not is_last and wait_until(
                lambda: self.store.check([key]), self.timeout_s
            )
            found = None if is_decided else self._found(place, step)
            decided = self._decide(key, found)
            if is_last:
                # all have come to the one after it
                for end in ("", " came"):
                    self.store.delete_key(f"meeting {self._number - 1}{end}")
        except RuntimeError:
            # the store goes with the rank that has it
            decided = Alarm("ranks", step, f"a rank has gone before {place}{SO}")
        self._number, self._step = self._number + 1, step
        return decided

    def leave(self) -> None:
        """Come to no more of them; a rank that waits in the next one, or comes there,
        hears it. Harmless to call twice.
        """
        what = f"at the end, while the others go on{SO}"
        gone = Alarm("ranks", self._step, what, ranks=[self.rank])
        with suppress(RuntimeError):
            self._decide(f"meeting {self._number}", gone)

    def _decide(self, key: str, found: Alarm | None) -> Alarm | None:
        # what was decided before, or else what this rank found
        mine = AGREED if found is None else json.dumps(vars(found))
        decided = json.loads(self.store.compare_set(key, "", mine))
        return None if decided is None else Alarm(**decided)

    def _found(self, place: str, step: int) -> Alarm | None:
        everyone = range(self.world_size)
        came = [rank for rank in everyone if self.store.check([f"at {rank}"])]
        told = self.store.multi_get([f"at {rank}" for rank in came])
        at = {rank: json.loads(one) for rank, one in zip(came, told, strict=True)}
        if late := [r for r in everyone if r not in at or at[r][0] < self._number]:
            what = f"did not come to {place} within {self.timeout_s:g} s{SO}"
            return Alarm("ranks", step, what, ranks=late)
        places = [at[rank][1] for rank in everyone]
        if ranks := unlike(places):
            what = f"at {against(places, ranks)}{SO}"
            return Alarm("steps", step, what, ranks=ranks)
        return None
