import lemminflect
from project import ROOT

from minitrain.grammar.verbs import Verb, load_verbs

VERBS = load_verbs(ROOT / "data" / "verbs.csv")

# (lemma, tag): the table's form is right and lemminflect knows only another.
ACCEPTED = {
    # like cast, let and hear; the regular forms are rare
    ("broadcast", "VBD"): "broadcast",
    ("forecast", "VBD"): "forecast",
    ("mishear", "VBD"): "misheard",
    ("mishear", "VBN"): "misheard",
    ("sublet", "VBD"): "sublet",
    ("sublet", "VBN"): "sublet",
    # American; British forms end in -t, -ted or -n, or, of prove and light, -ed
    ("fit", "VBN"): "fit",
    ("lean", "VBN"): "leaned",
    ("leap", "VBD"): "leaped",
    ("leap", "VBN"): "leaped",
    ("light", "VBN"): "lit",
    ("misspell", "VBN"): "misspelled",
    ("mow", "VBN"): "mowed",
    ("prove", "VBN"): "proven",
    ("saw", "VBN"): "sawed",
    ("smell", "VBN"): "smelled",
    ("spell", "VBN"): "spelled",
    # to lie on the grass: lay, lain; lied is the verb of untruth
    ("lie", "VBN"): "lain",
    # lemminflect has no -ing form of sting at all
    ("sting", "VBG"): "stinging",
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
