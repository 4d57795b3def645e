"""Limits of what rounding makes of gradients and parameters, by type.

The quick limits are those of the ladder (minitrain/proof/tolerances.py), estimated from
norms.
"""

from dataclasses import dataclass

from minitrain.proof.tolerances import (
    GRADIENT_SHARE,
    GRADIENT_SHARE_FLOAT64,
    SGD_SHARE,
    STATE_FLOAT64,
)

# of a fit: what rounding leaves in float32; what Adam makes of rounding in a step;
# SGD's step is a sum of gradients and weights
CLOSE, CLOSE_ADAPTIVE, LINEAR = 1e-3, 0.02, 1e-3
# of a whole gradient: what one in 16 bits is off
LOW_PRECISION = (2e-4, 2e-2)
# a difference that so much of follows the weights is no rounding, if it is as large as
# the weights times this, a step
FOLLOWS, LEAST_DECAY = 0.2, 1e-6
# rates that a float32 and a float64 hold
SAME_RATE = 1e-6


@dataclass(frozen=True)
class Limits:
    """Limits of gradients, as a share of the largest one, and of parameters under SGD,
    as a share of how far they moved; ``unit`` is what rounding makes of one operation.
    ``coarse`` is what rounding to the next smaller type makes of a tensor, and some,
    ``coarse_adaptive`` what Adam makes of that.
    """

    gradients: float
    linear: float
    unit: float
    coarse: float
    coarse_adaptive: float


# the next smaller type is bfloat16 for float32, and float32 for float64
FLOAT32 = Limits(GRADIENT_SHARE, SGD_SHARE, 2.0**-24, 0.03, 0.3)
FLOAT64 = Limits(GRADIENT_SHARE_FLOAT64, STATE_FLOAT64, 2.0**-53, 1e-5, 0.03)
