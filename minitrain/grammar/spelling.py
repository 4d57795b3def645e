"""Spelling rules of regular English verbs, American usage (traveled, canceled).

Stress decides whether a final consonant doubles (admit, admitted; visit,
visited) and spelling does not show it: a word of one syllable is stressed, and
``STRESSED_LAST`` names the longer verbs whose last syllable is, or counts as it in
a compound (reset, sublet).
"""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


VOWELS = frozenset("aeiou")
STRESSED_LAST = _words(
    """
    abhor acquit admit begin commit compel confer control defer deter equip
    excel expel forbid forget incur infer input kidnap occur omit outbid outrun
    overrun patrol permit prefer propel rebel recur refer regret repel reset
    sublet submit transfer transmit undercut unwrap upset
    """
)


def third_person(lemma: str) -> str:
    """Form for he, she and it: walks, watches, carries."""
    if lemma.endswith(("s", "x", "z", "ch", "sh")):
        return lemma + "es"
    if lemma.endswith(("o", "y")) and _consonant(lemma, -2):
        return (lemma[:-1] + "ies") if lemma[-1] == "y" else lemma + "es"
    return lemma + "s"


def past(lemma: str) -> str:
    """Regular past, also the past participle: walked, stopped, carried, baked."""
    if lemma.endswith("e"):
        return lemma + "d"
    if lemma.endswith("y") and _consonant(lemma, -2):
        return lemma[:-1] + "ied"
    return _stem(lemma) + "ed"


def present_participle(lemma: str) -> str:
    """Form in -ing: walking, stopping, baking, lying."""
    if lemma.endswith("ie"):
        return lemma[:-2] + "ying"
    if lemma.endswith("e") and not lemma.endswith(("ee", "oe", "ye")):
        return lemma[:-1] + "ing"
    return _stem(lemma) + "ing"


def _consonant(word: str, index: int) -> bool:
    if len(word) < -index:
        return False
    return word[index] not in VOWELS


def _stem(lemma: str) -> str:
    if lemma.endswith("c"):
        return lemma + "k"
    return lemma + lemma[-1] if _doubles(lemma) else lemma


def _doubles(lemma: str) -> bool:
    # the u of qu sounds as a consonant: quit, quitting
    word = lemma.replace("qu", "qw")
    if len(word) < 3 or word[-1] in VOWELS or word[-1] in "wxy":
        return False
    if word[-2] not in VOWELS or word[-3] in VOWELS:
        return False
    # y is a vowel except where a word begins with it
    one_syllable = not any(letter in VOWELS for letter in word[:-2])
    one_syllable = one_syllable and "y" not in word[1:-2]
    return one_syllable or lemma in STRESSED_LAST
