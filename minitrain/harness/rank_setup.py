"""What a rank does first and last, so that its launcher can tell what became of it."""

import os
from contextlib import suppress

from minitrain.comm import heartbeat as place
from minitrain.comm.heartbeat import Place
from minitrain.comm.store import our_store
from minitrain.harness import stack_dump as stack
from minitrain.harness.failures import waited_in_vain

# who lost a peer leaves after it, so that the launcher sees the cause first
AFTER_THE_CAUSE_S = 0.5
# who gave up is ended as soon as the launcher has looked for the one that is missing
UNTIL_ENDED_S = 3.0


def take_a_seat() -> Place:
    """The place of this rank, new. From now on it answers where it stands, and what
    C++ prints is kept from the terminal. In a rank that our launchers did not start
    nothing of this happens.
    """
    store = our_store()
    if store is None:
        return Place()
    folder, rank = store.parent, os.environ["RANK"]
    stack.keep_native_words(stack.words_of(folder, rank))
    stack.answer_in(stack.file_of(folder, rank))
    # last: it says that the question where this rank stands will not end it
    return place.make_place(place.file_of(folder, rank))


def leave(mine: Place, error: BaseException) -> float:
    """This rank ends with ``error``: tell the launcher whether it is of another rank's
    making, before anything else -> seconds to wait until that one was noticed.
    """
    why = waited_in_vain(error)
    store = our_store()
    if not why or store is None:
        return 0.0
    # what ends this rank is ``error``, and not that the disk is full, too
    with suppress(OSError):
        # where it waited; it does not any longer
        stack.say_farewell(store.parent, os.environ["RANK"], error)
    mine.leave(why)
    return UNTIL_ENDED_S if why == "gave up" else AFTER_THE_CAUSE_S
