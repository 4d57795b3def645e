"""What other hosts tell through the store, and how long to wait for it."""

import json
import time
from collections.abc import Sequence
from typing import Any

from minitrain.distributed.torch_private import Store

# one question for each host that is silent
POLL_S = 0.1


def hear(
    store: Store, keys: Sequence[str], within_s: float, after_error_s: float
) -> dict[str, dict[str, Any]]:
    """By its key what each host tells within ``within_s``, an error, or nothing where
    all is well; no longer than ``after_error_s`` after the first that tells an error,
    since the others will end of it. DistError where whoever has the store is lost.
    """
    deadline = time.monotonic() + within_s
    told: dict[str, dict[str, Any]] = {}
    while True:
        for key in keys:
            if key not in told and store.check([key]):
                told[key] = json.loads(store.get(key))
                if told[key]:
                    deadline = min(deadline, time.monotonic() + after_error_s)
        if len(told) == len(keys) or time.monotonic() > deadline:
            return told
        time.sleep(POLL_S)
