"""Hand-written sentences: each must be made, with its labels, or must never be."""

import pytest

from minitrain.grammar.sentences import Sentence, count_sentences, generate_sentences
from minitrain.grammar.verbs import Verb

TRICKY = {
    "be": Verb("be", "is", "was", "been", "being", "behavior"),
    "have": Verb("have", "has", "had", "had", "having", "meal_time"),
    "do": Verb("do", "does", "did", "done", "doing", "task"),
    "go": Verb("go", "goes", "went", "gone", "going", "destination"),
    "lie": Verb("lie", "lies", "lay", "lain", "lying", "posture"),
    "put": Verb("put", "puts", "put", "put", "putting", "putting"),
    "know": Verb("know", "knows", "knew", "known", "knowing", "fact"),
    "win": Verb("win", "wins", "won", "won", "winning", "contest"),
}


@pytest.fixture(scope="module")
def made() -> dict[str, dict[str, Sentence]]:
    return {
        lemma: {
            sentence.text: sentence
            for sentence in generate_sentences([verb], 1, count_sentences([verb]))
        }
        for lemma, verb in TRICKY.items()
    }


FIRST, SECOND, THIRD = "first_singular", "second", "third_singular"
WE, THEY = "first_plural", "third_plural"
YES, NO = "affirmative", "negative"
SAID, ASKED = "statement", "question"

EXPECTED = [
    ("be", "I'm kind every day.", "present_simple", FIRST, YES, SAID),
    ("be", "I'm not rude.", "present_simple", FIRST, NO, SAID),
    ("be", "Am I not careful?", "present_simple", FIRST, NO, ASKED),
    ("be", "You two aren't patient.", "present_simple", SECOND, NO, SAID),
    ("be", "They're being polite now.", "present_progressive", THEY, YES, SAID),
    ("be", "Weren't Ben and I polite?", "past_simple", WE, NO, ASKED),
    ("be", "He's been patient today.", "present_perfect", THIRD, YES, SAID),
    ("have", "Doesn't she have lunch?", "present_simple", THIRD, NO, ASKED),
    ("have", "They'd had breakfast by noon.", "past_perfect", THEY, YES, SAID),
    ("do", "I don't do research.", "present_simple", FIRST, NO, SAID),
    ("go", "Didn't you and Sam go home?", "past_simple", SECOND, NO, ASKED),
    ("go", "She'll be going home tonight.", "future_progressive", THIRD, YES, SAID),
    ("lie", "It lay in the sun yesterday.", "past_simple", THIRD, YES, SAID),
    (
        "lie",
        "Hasn't the cat been lying on the grass all day?",
        "present_perfect_progressive",
        THIRD,
        NO,
        ASKED,
    ),
    (
        "put",
        "My wife and I will have been putting cups on the table for hours.",
        "future_perfect_progressive",
        WE,
        YES,
        SAID,
    ),
    ("know", "I've known the truth for years.", "present_perfect", FIRST, YES, SAID),
    ("win", "My sister is winning games.", "present_progressive", THIRD, YES, SAID),
]

NEVER = [
    ("be", "I do not be kind."),
    ("be", "I amn't kind."),
    ("be", "I'm."),
    ("be", "She has been being kind."),
    ("have", "Has she lunch?"),
    ("put", "They put cups on the table."),
    ("know", "She is knowing the truth now."),
    ("know", "She knows the truth every day."),
    ("win", "She has been winning games for hours."),
    ("go", "She'dn't gone home."),
    ("go", "Anna's gone home."),
]


@pytest.mark.slow
def test_sentence_is_made_with_its_labels(made: dict[str, dict[str, Sentence]]) -> None:
    for lemma, text, *labels in EXPECTED:
        assert made[lemma][text] == Sentence(text, lemma, *labels)


def test_sentence_is_never_made(made: dict[str, dict[str, Sentence]]) -> None:
    assert [text for lemma, text in NEVER if text in made[lemma]] == []


def test_verbs_without_a_class() -> None:
    hum = Verb("hum", "hums", "hummed", "hummed", "humming")
    texts = {s.text for s in generate_sentences([hum], 0, count_sentences([hum]))}
    assert {"She hums every day.", "They haven't hummed yet."} <= texts
    # be says nothing alone
    bare = Verb("be", "is", "was", "been", "being")
    texts = {s.text for s in generate_sentences([bare], 0, count_sentences([bare]))}
    assert "She is kind every day." in texts
