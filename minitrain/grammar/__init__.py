"""English sentences from a table of verbs: tenses, persons, polarity and mood."""
