"""The report: sentences, pictures and one page, made from measured numbers alone.

``read`` reads what the stages measured into ``facts``, templates make sentences and
tables of them, ``pictures`` and ``overview`` draw, and ``publish`` writes all files.
Nothing here imports torch or measures anything.
"""
