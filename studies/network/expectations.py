"""All-reduce times over a link predicted by the cost model of studies/prediction."""

from pathlib import Path
from typing import Any

from arms import Arm
from cost_model import channel
from link_model import Network, network_of
from link_rate import LOOPBACK

from minitrain.core.files import read_json

FIT = Path(__file__).resolve().parents[1] / "prediction"
# facts that both measurements must share
MACHINE = ("cpu", "cores", "torch")


def fitted_on(machine: dict[str, Any]) -> Network | None:
    """Return the links of the cost model if measured on such a ``machine``."""
    there = read_json(FIT / "machine.json", "machine")["machine"]
    if any(there[key] != machine[key] for key in MACHINE):
        return None
    return network_of(read_json(FIT / "fit.json", "network")["network"])


def expected_ms(
    arm: Arm, num_bytes: list[int], rate: str, links: Network | None
) -> float | None:
    # back to back, on a link that was idle; excludes waiting for gradients
    if links is None or arm.world_size == 1 or (rate != LOOPBACK and not links.cable):
        return None
    ready = [0.0] * len(num_bytes)
    return 1e3 * channel(ready, num_bytes, links.link(rate), arm.world_size)
