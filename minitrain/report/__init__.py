"""The report: words, pictures and one page, made from measured numbers alone.

``results`` holds what the stages measured, ``words`` makes sentences of it, ``plots``
pictures, ``page`` fills the template of the page, ``render`` makes HTML of it,
``manifest`` the summary, and ``publish`` writes all of them.
Nothing here imports torch or measures anything.
"""
