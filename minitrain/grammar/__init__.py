"""English sentences from a table of verbs: tenses, persons, polarity and mood.

``verbs`` reads the table, ``spelling`` holds the rules of the regular forms,
``phrases`` and ``complements`` the words around the verb, ``clauses`` the auxiliaries
and their agreement, ``sentences`` draws sentences without repeating one.
"""
