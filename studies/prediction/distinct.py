"""Detection of settings that differ only in options without effect."""

from collections.abc import Hashable, Sequence
from dataclasses import replace

from gpt_layers import buckets, layers_of
from link_rate import LOOPBACK, bytes_per_s
from setting import NO_SYNC, Setting


def repeated(
    fitted: Sequence[Setting], held_out: Sequence[Setting]
) -> tuple[int, Setting] | None:
    """Return the index of the first of ``held_out`` that repeats an earlier setting,
    and that setting; None if all are distinct. Predicting a repeated setting would test
    nothing.
    """
    seen = {essence(one): one for one in fitted}
    for place, setting in enumerate(held_out):
        if essence(setting) in seen:
            return place, seen[essence(setting)]
        seen[essence(setting)] = setting
    return None


def essence(setting: Setting) -> Hashable:
    """Reduce ``setting`` to options with an effect: link and bucket cap have none
    without synchronization, and a cap only through the buckets that it makes.
    """
    plain = replace(setting, bucket_cap_mb=None, link=LOOPBACK)
    if setting.sync == NO_SYNC:
        return plain
    rate = None if setting.link == LOOPBACK else bytes_per_s(setting.link)
    return plain, rate, tuple(buckets(layers_of(setting), setting.bucket_cap_mb))
