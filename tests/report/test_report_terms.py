"""The glossary: one place for each word, and addresses that links can have."""

import re

from minitrain.report.terms import TERMS, anchors


def test_every_spelling_has_one_meaning() -> None:
    spellings = [spelling.lower() for term in TERMS for spelling in term.spellings]
    assert len(spellings) == len({*spellings})
    assert anchors().keys() == {*spellings}
    assert anchors()["replay only"] != anchors()["replay"]


def test_anchors_are_of_their_own_and_can_stand_in_an_address() -> None:
    found = [term.anchor for term in TERMS]
    assert len(found) == len({*found})
    assert all(re.fullmatch(r"term(-[a-z0-9]+)+", anchor) for anchor in found)
    assert "term-5-95-interval" in found


def test_every_word_is_explained_in_sentences() -> None:
    for term in TERMS:
        assert term.meaning.endswith((".", ")."))
        # whoever looks it up finds it there
        assert term.spellings, term.name
