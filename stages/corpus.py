"""Build the corpus: sentences from a verb table, or one's own text.

python -m stages.corpus
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from minitrain.corpus import read_corpus
from minitrain.errors import run_stage
from minitrain.files import write_jsonl
from minitrain.grammar import generate_sentences, load_verbs
from minitrain.params import load_params
from minitrain.progress import progress


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
