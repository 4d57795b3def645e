"""Objects and other complements, by the class that the verb table names.

They are plural, mass or definite, so that they go with habits as well as with single
acts; nouns that are subjects (``minitrain.grammar.phrases``) are never among them.
"""

from pathlib import Path

# What may follow a verb, by class. A bar separates; an empty one is no phrase.
_TABLE = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
COMPLEMENTS = {
    name: tuple(text.strip().split("|"))
    for name, text in (line.split(":") for line in _TABLE.splitlines())
}
