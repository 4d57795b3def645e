import lemminflect
from project import ROOT

from minitrain.grammar.verbs import Verb, load_verbs

VERBS = load_verbs(ROOT / "data" / "verbs.csv")

# (lemma, tag): the table's form is right and lemminflect knows only another.
ACCEPTED = {
    # broadcast stays as it is, like cast; broadcasted is rare
    ("broadcast", "VBD"): "broadcast",
    # American participle of fit is fit
    ("fit", "VBN"): "fit",
    # forecast stays as it is, like cast
    ("forecast", "VBD"): "forecast",
    # American leaned, leaped, misspelled, smelled, spelled; British forms in -t
    ("lean", "VBN"): "leaned",
    ("leap", "VBD"): "leaped",
    ("leap", "VBN"): "leaped",
    ("misspell", "VBN"): "misspelled",
    ("smell", "VBN"): "smelled",
    ("spell", "VBN"): "spelled",
    # to lie on the grass: lay, lain; lied is the verb of untruth
    ("lie", "VBN"): "lain",
    # lit is the common participle, lighted the older one
    ("light", "VBN"): "lit",
    # mishear goes like hear
    ("mishear", "VBD"): "misheard",
    ("mishear", "VBN"): "misheard",
    # American participles of mow and saw are regular
    ("mow", "VBN"): "mowed",
    ("saw", "VBN"): "sawed",
    # American participle of prove: proven as well as proved
    ("prove", "VBN"): "proven",
    # lemminflect has no -ing form of sting at all
    ("sting", "VBG"): "stinging",
    # sublet goes like let
    ("sublet", "VBD"): "sublet",
    ("sublet", "VBN"): "sublet",
}


def forms(verb: Verb) -> dict[str, str]:
    return {
        "VBZ": verb.third_person,
        "VBD": verb.past,
        "VBN": verb.past_participle,
        "VBG": verb.present_participle,
    }


def test_table_holds_at_least_400_verbs_in_alphabetical_order() -> None:
    lemmas = [verb.lemma for verb in VERBS]
    assert len(lemmas) >= 400
    assert lemmas == sorted(lemmas)


def test_forms_agree_with_lemminflect() -> None:
    differing = {
        (verb.lemma, tag): form
        for verb in VERBS
        for tag, form in forms(verb).items()
        if form not in lemminflect.getInflection(verb.lemma, tag=tag)
    }
    assert differing == ACCEPTED
