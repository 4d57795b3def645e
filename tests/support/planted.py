"""A machine with known coefficients, for tests of fits."""

from cost_model import Compute, Machine, Overheads, Step, predict
from link_model import Line, Link, Network, Shaped
from network_namespaces import BURST_BYTES
from setting import NO_SYNC, Setting

# a realistic core: 90 Gflop/s; a bucket costs as much as the backward of a layer
MACHINE = Machine(
    cores=2,
    compute=Compute(
        forward=(1.1e-11, 3e-10, 5e-10, 1.5e-5),
        backward=(2.2e-11, 5e-10, 2e-9, 3e-5),
        optimizer=(2e-9, 4e-5),
        data=(3e-5, 1e-4),
    ),
    contention=1.1,
    crowding=0.05,
    link_crowding=(3.0, 1.5),
    overheads=Overheads(
        step=2e-3,
        straggle=0.02,
        byte=3e-10,
        hidden_byte=5e-10,
        hidden_bucket=7e-4,
        crowd=4e-3,
        cast=6e-10,
    ),
)
NETWORK = Network(
    Link((Line(0, 2e-4, 1.2e-9), Line(2**19, 5e-4, 7e-10))),
    Shaped(alpha=1e-4, frame_bytes=500, overhead=1.05, burst_bytes=BURST_BYTES),
)
# origin of a measurement on an idle machine
MEASURED = {
    "load": {"others_share": 0.01, "steal_share": 0.0},
    "measured_at": "2030-01-01T00:00:00+00:00",
    "code_sha256": "0" * 64,
    "machine": {"cpu": "planted", "gpu": None, "cores": 2, "torch": "2.13.0+cpu"},
}


def step_of(setting: Setting, machine: Machine = MACHINE) -> Step:
    """The step of ``setting`` on ``machine``, over a link of NETWORK."""
    link = None if setting.sync == NO_SYNC else NETWORK.link(setting.link)
    return predict(setting, machine, link)
