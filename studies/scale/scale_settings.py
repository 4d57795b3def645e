"""What studies/scale/params.yaml may say."""

from minitrain.core.schema import Count, Section, Some


class Scale(Section):
    num_sentences: Some[Count]
    num_repeats: Count
