"""Schema of studies/scale/params.yaml."""

from minitrain.core.schema import Count, Section, Some


class Scale(Section):
    num_sentences: Some[Count]
    num_repeats: Count
