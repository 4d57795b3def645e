"""Limits of rounding in gradients and parameters, by dtype.

The quick limits (the first to be checked) are from proof/tolerances.py, for norms.
"""

from dataclasses import dataclass

from minitrain.proof.tolerances import (
    GRADIENT_SHARE,
    GRADIENT_SHARE_FLOAT64,
    SGD_SHARE,
    STATE_FLOAT64,
)

# the largest residual of a close fit: by float32 rounding; of a step of SGD as a sum of
# gradients and weights
CLOSE, LINEAR = 1e-3, 1e-3
# relative error of a gradient in 16 bits
LOW_PRECISION = (2e-4, 2e-2)
# relative distance of a rate in float32 and in float64
SAME_RATE = 1e-6


@dataclass(frozen=True)
class DtypeLimits:
    """Limits of rounding for one dtype. ``gradients``: share of the largest gradient;
    ``linear``: share of the distance that training moved a parameter; ``unit``:
    relative error of one operation; ``coarse``: of rounding to the next smaller dtype,
    with a margin; ``coarse_adaptive``: its effect on a step of Adam.
    """

    gradients: float
    linear: float
    unit: float
    coarse: float
    coarse_adaptive: float


# the next smaller type is bfloat16 for float32, and float32 for float64
FLOAT32 = DtypeLimits(GRADIENT_SHARE, SGD_SHARE, 2.0**-24, 0.03, 0.3)
FLOAT64 = DtypeLimits(GRADIENT_SHARE_FLOAT64, STATE_FLOAT64, 2.0**-53, 1e-5, 0.03)
