"""The report: words, pictures and one page, made from measured numbers alone.

``results`` holds what the stages measured, ``words`` makes sentences of it, ``plots``
pictures, ``page`` the one-page report out of ``blocks``, ``manifest`` the summary.
Nothing here imports torch or measures anything.
"""
