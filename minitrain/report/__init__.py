"""The report: words, pictures and one page, made from measured numbers alone.

``results`` holds what the stages measured, ``words`` makes sentences of it, ``plots``
and ``overview`` pictures, ``sections`` an answer to each question, ``page`` one page of
them, ``webpage`` HTML, ``manifest`` the summary, and ``publish`` writes all of them.
Nothing here imports torch or measures anything.
"""
