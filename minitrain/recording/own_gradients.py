"""Gradients that a rank computed on its own: of a step, and of each backward pass."""

from contextlib import suppress

from torch import Tensor, strided

from minitrain.recording.fingerprint import sketch

Sketch = list[float]
Sketches = dict[str, Sketch]
Shares = dict[str, list[Sketch]]
# bytes of gradients that are kept for a moment: less than a bucket of DDP's
KEPT = 8 << 20
# of a step: more are not told apart, and their sketches would fill the disk
MOST_PASSES = 16


class OwnSketches:
    """Sketches of gradients as backward passes leave them, before any reduction.

    A pass that is not synchronized leaves its gradient to the next one, which adds to
    it. ``passes`` holds the share of each pass but the last one, by parameter.
    """

    def __init__(self) -> None:
        self._own: Sketches = {}
        # gradients that are yet to be sketched, and their bytes
        self._kept: dict[str, Tensor] = {}
        self._num_kept = 0
        self._passes: Shares = {}
        # what the running pass adds to
        self._base: Sketches = {}

    def begins(self, name: str) -> None:
        """Start with the first pass of a step."""
        self._take(name)
        self._passes[name] = []
        self._base.pop(name, None)

    def continues(self, name: str, gradient: Tensor) -> None:
        """Note the ``gradient`` that one more pass is about to add to."""
        shares = self._passes.get(name)
        if shares is None or len(shares) == MOST_PASSES:
            self._passes.pop(name, None)
            return
        now = sketch(gradient)
        # a reduction may have changed it since the pass before
        shares.append(_less(self._take(name) or now, self._base.get(name)))
        self._base[name] = now

    def add(self, name: str, gradient: Tensor) -> None:
        """Note a gradient as the pass leaves it that synchronizes."""
        if gradient.layout is not strided or gradient.nbytes > KEPT:
            self._own[name] = sketch(gradient)
            return
        # later, many at once: beside a backward pass each takes three times as long
        self._kept[name] = gradient.detach().clone()
        self._num_kept += gradient.nbytes
        if self._num_kept > KEPT:
            self._sketch_kept()

    def take(self, names: list[str]) -> tuple[Sketches, Shares]:
        """Return the sketches of ``names``, and of those that several passes made the
        share of each pass; forget both.
        """
        self._sketch_kept()
        own = {n: self._own.pop(n) for n in names if n in self._own}
        shares = {n: self._passes.pop(n, []) for n in names}
        passes = {
            n: [*shares[n], _less(own[n], self._base[n])] for n in own if shares[n]
        }
        return own, passes

    def _take(self, name: str) -> Sketch | None:
        own, kept = self._own.pop(name, None), self._kept.pop(name, None)
        self._num_kept -= 0 if kept is None else kept.nbytes
        return own if kept is None else sketch(kept)

    def _sketch_kept(self) -> None:
        self._num_kept = 0
        # not over its items: each device has a thread that may add some
        with suppress(KeyError):
            while True:
                name, gradient = self._kept.popitem()
                self._own[name] = sketch(gradient)


def _less(a: Sketch, b: Sketch | None) -> Sketch:
    return a if b is None else [x - y for x, y in zip(a, b, strict=True)]
