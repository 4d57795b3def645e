"""Ranks meet before they call for what needs all of them.

Where each holds a part of the parameters, to put these together is a collective in the
run's own group. A rank that is elsewhere would answer it with a collective of the run,
and both would hang, or abort. So each says in a store where it is, and the first to
know decides for all, once: a rank that came too late is not to think that it was seen.
"""

import json
import time
from contextlib import suppress
from dataclasses import dataclass, field

from minitrain.comm.torch_private import Store
from minitrain.recording.alarm import Alarm, alarm, unlike

POLL_S, FIRST_POLL_S = 0.005, 0.0001
# a store takes an empty text for a key that is not there
AGREED = "null"
SO = "; sharded tensors need all ranks, so the recording ends here"


@dataclass
class Meetings:
    """Of ``world_size`` ranks, by a ``store`` of theirs. Each comes to all, in the same
    order, until one fails; after that there are none.
    """

    store: Store
    rank: int
    world_size: int
    timeout_s: float
    failed: bool = field(default=False, init=False)
    _number: int = field(default=0, init=False)
    _step: int = field(default=0, init=False)

    def come(self, place: str, step: int, parts: str) -> Alarm | None:
        """Wait for the others, ``timeout_s`` at most. None where all came to this
        ``place`` of the run with the same ``parts``; else why not, which every rank
        hears that comes to this meeting, however late.
        """
        key = f"meeting {self._number}"
        try:
            mine = json.dumps([self._number, place, parts])
            self.store.set(f"at {self.rank}", mine)
            is_last = self.store.add(f"{key} came", 1) == self.world_size
            waits = not is_last and self._is_decided(key)
            decided = self._decide(key, None if waits else self._found(place, step))
            if is_last:
                self._clear(self._number - 1)
        except RuntimeError:
            # the store goes with the rank that has it
            decided = alarm("ranks", step, f"a rank has gone before {place}{SO}")
        self._number, self._step = self._number + 1, step
        self.failed = decided is not None
        return decided

    def leave(self) -> None:
        """Come to no more of them; who waits in the next one, or comes there, hears
        it. Harmless to call twice.
        """
        # ranks that never met have no use for it
        if not self._number:
            return
        what = f"at the end, while the others go on{SO}"
        gone = alarm("ranks", self._step, what, ranks=[self.rank])
        with suppress(RuntimeError):
            self._decide(f"meeting {self._number}", gone)

    def _is_decided(self, key: str) -> bool:
        """Whether it is, as soon as that is so; not within the timeout else."""
        deadline, pause = time.monotonic() + self.timeout_s, FIRST_POLL_S
        while not self.store.check([key]):
            if time.monotonic() > deadline:
                return False
            time.sleep(pause)
            pause = min(2 * pause, POLL_S)
        return True

    def _decide(self, key: str, found: Alarm | None) -> Alarm | None:
        """What was decided before, or else ``found``, which is then."""
        mine = AGREED if found is None else json.dumps(vars(found))
        said = json.loads(self.store.compare_set(key, "", mine))
        return None if said is None else Alarm(**said)

    def _found(self, place: str, step: int) -> Alarm | None:
        everyone = range(self.world_size)
        came = [rank for rank in everyone if self.store.check([f"at {rank}"])]
        told = self.store.multi_get([f"at {rank}" for rank in came])
        at = {rank: json.loads(one) for rank, one in zip(came, told, strict=True)}
        if late := [r for r in everyone if r not in at or at[r][0] < self._number]:
            what = f"did not come to {place} within {self.timeout_s:g} s"
            return alarm("ranks", step, what + SO, ranks=late)
        places = [at[rank][1] for rank in everyone]
        if ranks := unlike(places):
            usual = next(one for rank, one in enumerate(places) if rank not in ranks)
            what = f"at {places[ranks[0]]}, while the others are at {usual}"
            return alarm("steps", step, what + SO, ranks=ranks)
        if ranks := unlike([at[rank][2] for rank in everyone]):
            what = "other tensors than on the others have one, or an optimizer's state"
            return alarm("gradients", step, what + SO, ranks=ranks)
        return None

    def _clear(self, number: int) -> None:
        """All have come to the one after it."""
        for key in (f"meeting {number}", f"meeting {number} came"):
            self.store.delete_key(key)
