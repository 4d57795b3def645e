"""Settings whose steps are measured and predicted: rows of a table in params.yaml."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from link_rate import LOOPBACK, bytes_per_s

from minitrain.core.errors import UserError

NO_SYNC, DDP, FP16 = "none", "ddp", "fp16_compress"
COUNTS = ("processes", "n_layer", "n_embd", "samples", "micro_batches")
FIELDS = ("sync", *COUNTS, "bucket_cap_mb", "link")


@dataclass(frozen=True)
class Setting:
    """Model, number of processes and synchronization of a training step.

    ``samples`` are per process and step, over its ``micro_batches``; ``link`` is
    loopback or the rate of a cable, ``bucket_cap_mb`` as in params.yaml. ``sync`` is
    one of ``none``, ``ddp`` and ``fp16_compress``. All processes run on one machine.
    For predictions, ``n_embd`` and ``samples`` may be fractional.
    """

    sync: str
    processes: int
    n_layer: int
    n_embd: float
    samples: float
    micro_batches: int = 1
    bucket_cap_mb: float | None = None
    link: str = LOOPBACK
    block_size: int = 64
    vocab_size: int = 256

    @property
    def silent(self) -> "Setting":
        """Same processes, without communication."""
        return replace(self, sync=NO_SYNC, bucket_cap_mb=None, link=LOOPBACK)

    @property
    def alone(self) -> "Setting":
        """Single process of this setting, without others on the machine."""
        return replace(self.silent, processes=1)


def setting_of(row: Sequence[Any]) -> Setting:
    """Return the setting of a row with all FIELDS in order; raises ValueError with the
    allowed values (for pydantic).
    """
    if len(row) != len(FIELDS):
        raise ValueError(f"must be a list of {', '.join(FIELDS)}")
    found = dict(zip(FIELDS, row, strict=True))
    if found["sync"] not in (NO_SYNC, DDP, FP16):
        raise ValueError(f"sync must be one of {NO_SYNC}, {DDP}, {FP16}")
    if any(type(found[name]) is not int or found[name] < 1 for name in COUNTS):
        raise ValueError(f"{', '.join(COUNTS)} must be whole numbers above 0")
    if found["processes"] == 1 and found["sync"] != NO_SYNC:
        raise ValueError(f"sync must be {NO_SYNC} for one process")
    if found["samples"] % found["micro_batches"]:
        raise ValueError("samples must be a multiple of micro_batches")
    cap = found["bucket_cap_mb"]
    if cap is not None and (type(cap) not in (int, float) or cap <= 0):
        raise ValueError("bucket_cap_mb must be null or above 0")
    checked_link(found["link"])
    return Setting(**found)


def checked_link(name: str) -> str:
    """Return ``name`` if it is loopback or a rate; raises ValueError (for pydantic)."""
    if name != LOOPBACK:
        try:
            bytes_per_s(name)
        except UserError as error:
            raise ValueError(str(error)) from None
    return name


def name_of(setting: Setting) -> str:
    """Return a unique name of the setting within a study, on one line."""
    said = [
        setting.sync,
        f"{setting.processes} x {setting.samples:g} samples",
        f"{setting.n_layer} layers of {setting.n_embd:g}",
    ]
    if setting.micro_batches > 1:
        said.append(f"{setting.micro_batches} micro-batches")
    if setting.bucket_cap_mb is not None:
        said.append(f"buckets of {setting.bucket_cap_mb:g} MiB")
    if setting.sync != NO_SYNC:
        said.append(setting.link)
    return ", ".join(said)


def new_in(setting: Setting, fitted: Sequence[Setting]) -> list[str]:
    """Return the FIELDS of ``setting`` with effect and a value new to ``fitted``."""
    if setting.sync == NO_SYNC:
        setting = setting.silent
    return [
        name
        for name in FIELDS
        if getattr(setting, name) not in {getattr(one, name) for one in fitted}
    ]
