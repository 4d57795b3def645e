"""English sentences from a table of verbs: tenses, persons, polarity and mood.

``verbs`` reads the table, ``phrases`` and ``complements`` hold the words around the
verb, ``clauses`` the auxiliaries and their agreement, ``sentences`` draws sentences
without repeating one.
"""
