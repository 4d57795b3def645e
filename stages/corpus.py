"""Building the corpus: sentences from a verb table, or your own text.

python -m stages.corpus
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from minitrain.core.errors import run_stage
from minitrain.core.files import write_jsonl
from minitrain.core.params import load_params
from minitrain.core.progress import progress
from minitrain.data.text import read_corpus
from minitrain.grammar.sentences import generate_sentences
from minitrain.grammar.verbs import load_verbs


def main() -> None:
    corpus = load_params(Path("params.yaml")).corpus
    source = Path(corpus.source)
    rows: Iterable[dict[str, Any]]
    if source.suffix == ".csv":
        verbs = load_verbs(source)
        sentences = generate_sentences(verbs, corpus.seed, corpus.num_sentences)
        rows = (sentence._asdict() for sentence in sentences)
    else:
        rows = read_corpus(source)
    write_jsonl(Path("data/corpus.jsonl"), progress(rows, "corpus"))


if __name__ == "__main__":
    run_stage(main)
