"""Spelling rules, each with the cases that a simpler rule would get wrong."""

import pytest

from minitrain.grammar import spelling


@pytest.mark.parametrize(
    ("lemma", "expected"),
    [
        ("walk", "walks"),
        ("bake", "bakes"),
        ("miss", "misses"),
        ("mix", "mixes"),
        ("buzz", "buzzes"),
        ("watch", "watches"),
        ("wash", "washes"),
        ("go", "goes"),
        ("boo", "boos"),
        ("carry", "carries"),
        ("play", "plays"),
        ("tie", "ties"),
        ("cough", "coughs"),
    ],
)
def test_third_person(lemma: str, expected: str) -> None:
    assert spelling.third_person(lemma) == expected


@pytest.mark.parametrize(
    ("lemma", "expected"),
    [
        ("walk", "walked"),
        ("bake", "baked"),
        ("agree", "agreed"),
        ("tie", "tied"),
        ("carry", "carried"),
        ("play", "played"),
        ("stop", "stopped"),
        ("shrug", "shrugged"),
        ("quiz", "quizzed"),
        ("yap", "yapped"),
        ("fix", "fixed"),
        ("row", "rowed"),
        ("help", "helped"),
        ("peel", "peeled"),
        ("visit", "visited"),
        ("admit", "admitted"),
        ("travel", "traveled"),
        ("equip", "equipped"),
        ("panic", "panicked"),
        ("echo", "echoed"),
    ],
)
def test_past(lemma: str, expected: str) -> None:
    assert spelling.past(lemma) == expected


@pytest.mark.parametrize(
    ("lemma", "expected"),
    [
        ("walk", "walking"),
        ("bake", "baking"),
        ("agree", "agreeing"),
        ("hoe", "hoeing"),
        ("dye", "dyeing"),
        ("argue", "arguing"),
        ("lie", "lying"),
        ("carry", "carrying"),
        ("run", "running"),
        ("quit", "quitting"),
        ("begin", "beginning"),
        ("open", "opening"),
        ("say", "saying"),
        ("eat", "eating"),
        ("panic", "panicking"),
    ],
)
def test_present_participle(lemma: str, expected: str) -> None:
    assert spelling.present_participle(lemma) == expected
