"""The assumptions of a prediction, as the footer of its chart."""

import textwrap

from at_scale import ASSUMPTIONS
from prediction_settings import Scale

from minitrain.report.numbers import percent, plural


def assumptions(scale: Scale, overhead: float) -> str:
    said = (
        f"GPT of {plural(scale.n_layer, 'layer')}, width {scale.n_embd}, "
        f"{scale.samples} x {scale.block_size} tokens a rank, {scale.tflop_per_s:g} "
        f"Tflop/s, {scale.ranks_per_host} ranks a host on {scale.inside.gbit_per_s:g} "
        f"Gbit/s, {scale.bucket_cap_mb:g} MiB buckets, headers of "
        f"{percent(overhead - 1)} (measured). Assumed: {'; '.join(ASSUMPTIONS)}."
    )
    return "\n".join(textwrap.wrap(said, 118))
