"""What other hosts tell through the store, and how long to wait for it."""

import json
import time
from collections.abc import Iterable, Mapping
from typing import Any

from minitrain.comm.torch_private import Store
from minitrain.core.printable import note

# one question for each host that is silent
POLL_S = 0.1
# who waits longer says for whom
SAY_S = 5.0

# by its key what a host told: an error, or nothing where all is well
Told = dict[str, dict[str, Any]]


def read(store: Store, keys: Iterable[str], told: Told) -> bool:
    """Add to ``told`` what is there by now -> whether any of it is an error. DistError
    where whoever has the store is lost.
    """
    for key in keys:
        if key not in told and store.check([key]):
            told[key] = json.loads(store.get(key))
    return any(told.get(key) for key in keys)


def hear(
    store: Store,
    names: Mapping[str, str],
    told: Told,
    within_s: float,
    after_error_s: float,
) -> None:
    """Add to ``told`` what hosts, whose ``names`` are given by key, tell within
    ``within_s``; no longer than ``after_error_s`` after the first that tells an error,
    since the others will end of it. DistError where whoever has the store is lost:
    what was heard before that is kept.
    """
    began = time.monotonic()
    deadline, said = began + within_s, False
    while True:
        if read(store, names, told):
            deadline = min(deadline, time.monotonic() + after_error_s)
        missing = [name for key, name in names.items() if key not in told]
        now = time.monotonic()
        if not missing or now > deadline:
            return
        if not said and now - began > SAY_S:
            said = True
            note(f"waiting for {', '.join(missing)}, {deadline - now:.0f} s at most")
        time.sleep(POLL_S)
