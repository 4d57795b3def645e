"""Training loop, independent of how ranks synchronize."""

from collections.abc import Iterable

from minitrain.train.worker import Worker


def train(worker: Worker, steps: Iterable[int]) -> None:
    """Train ``worker`` for ``steps`` (step numbers from 0), and call its observer's
    hooks. Collective. Raises their errors, such as UserError if a loss is not finite.
    """
    observer = worker.observer
    for step in steps:
        observer.begin(step)
        micro_batches = worker.batches.micro_batches(step)
        observer.after_data(micro_batches)
        worker.sync.begin()
        for micro_batch in micro_batches:
            is_last = micro_batch is micro_batches[-1]
            with worker.micro_step(micro_batch, is_last):
                observer.before_forward()
                loss = worker.forward(micro_batch)
                observer.after_forward(loss)
                worker.backward(loss, micro_batch)
                observer.after_backward()
        worker.sync.reduce()
        observer.after_reduce()
        worker.unscale()
        observer.before_step()
        worker.step()
        observer.after_step()
