"""Generation of English sentences: tense, person, polarity and mood."""
