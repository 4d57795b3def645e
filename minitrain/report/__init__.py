"""The report: sentences, charts and one page, generated from measured numbers.

``read`` reads the results of the stages into ``facts``, templates render sentences and
tables, ``pictures`` and ``overview`` draw, and ``publish`` writes all files. This
package measures nothing and does not import torch.
"""
