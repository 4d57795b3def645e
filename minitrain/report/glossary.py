"""What the words of the report mean, in plain language."""

RUNGS = {
    "trained": "parameters after training, against before: they must differ",
    "reduced_once": "buckets of every step: each tensor is in one, and in one only",
    "ranks": "final state of every rank, against rank 0",
    "replay": "final state, against one process that takes the shards in turn",
    "replay_gradients": "gradients at the recorded steps, against the same replay",
    "replay_buffers": "buffers at the recorded steps, against the same replay",
    "replay_parameters": "parameters at the recorded steps, against the same replay",
    "one_process": "final state, against one process that takes the whole batch",
    "one_process_data": "samples of every batch, against the one-process run",
    "one_process_early": "state after the third step, against that one process",
    "one_process_gradients": "gradients of the first step, against that one process",
    "data": "samples of every batch, against the replay",
    "world_sizes": "final state, against that of the fewest processes",
}

GLOSSARY = [
    (
        "Data-parallel training (DDP)",
        "Every process holds a copy of the model and computes gradients on its part of "
        "the batch; all average their gradients, and each takes the same step. DDP is "
        "PyTorch's implementation.",
    ),
    ("Rank, world size", "The number of a process, from 0, and how many there are."),
    ("gloo, nccl", "Libraries that carry the data: between CPUs, and between GPUs."),
    (
        "All-reduce",
        "Adding up numbers over all ranks so that each gets the sum. Its time in a "
        "step reaches from handing gradients over until they are reduced: it holds "
        "waiting for the other ranks, and for a core.",
    ),
    (
        "Tokens per second",
        "Bytes of text learned from in a second, over all ranks, without padding.",
    ),
    (
        "p5, p50, p95",
        "5, 50 (the median) or 95 % of the measured values lie below this one.",
    ),
    (
        "Noise floor",
        "Identical arms, measured in turns, differ a little (A/A). The largest "
        "difference among the pairs of this run is the floor: one below it is not "
        "worth reporting. In another run identical arms may differ by more.",
    ),
    (
        "5-95 % interval",
        "Where the figure falls in 90 % of the cases when it is computed again from "
        "values drawn at random from the measured ones (bootstrap).",
    ),
    (
        "No communication (the ceiling)",
        "The same processes side by side, each on its own: what DDP reaches at best.",
    ),
    (
        "Replay",
        "One process that computes the ranks' shards one after the other and adds the "
        "gradients in the order in which the ranks did.",
    ),
    (
        "ULP",
        "Unit in the last place: how many steps from one representable number to the "
        "next lie between two values. 0 means the same number.",
    ),
    (
        "Within tolerance",
        "Not the same bits: a whole batch is summed in another order than its parts, "
        "and rounding differs. The limit is set from how large that rounding can grow.",
    ),
    (
        "Data, wait",
        "Getting the next batch ready; waiting for the slowest rank. Where there is "
        "one rank, wait is what a barrier itself costs.",
    ),
    (
        "Interference",
        "How much longer computing the gradients takes while they are being sent: a "
        "difference of two measurements, which noise can push below zero.",
    ),
    (
        "Exposed communication",
        "Communication that remains after the last gradient is computed, so that "
        "nothing hides it.",
    ),
    (
        "Closed account",
        "The parts were measured with instruments; they count when their sum is within "
        "5 % of a step without any.",
    ),
]
