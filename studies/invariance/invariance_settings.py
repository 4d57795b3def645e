"""Schema of studies/invariance/params.yaml."""

from minitrain.core.schema import Count, Section, Some


class Invariance(Section):
    world_sizes: Some[Count]
    num_steps: Count
    num_epochs: Count
    num_samples: Count
