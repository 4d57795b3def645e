"""Regular forms of English verbs (American usage), to compare the verb table with."""

import re

# Of the table's longer verbs, those whose last syllable is stressed, or counts as it in
# a compound, which spelling does not show: then its end doubles (admitted).
_STRESSED = "admit begin forbid forget input outbid outrun permit prefer regret reset"
STRESSED_LAST = [*_STRESSED.split(), "sublet", "upset"]


def past(lemma: str) -> str:
    """Past and past participle: walked, stopped, carried, baked."""
    if re.search("[^aeiou]y$", lemma):
        return lemma[:-1] + "ied"
    return _stem(lemma).removesuffix("e") + "ed"


def _stem(lemma: str) -> str:
    if lemma.endswith("c"):
        return lemma + "k"
    # one syllable, whose vowel is one letter; the u of qu sounds as a consonant
    short = re.fullmatch(
        "[^aeiou][^aeiouy]*[aeiou][^aeiouwxy]", lemma.replace("qu", "qw")
    )
    return lemma + lemma[-1] if short or lemma in STRESSED_LAST else lemma
