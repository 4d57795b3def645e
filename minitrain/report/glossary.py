"""The terms of the report, and what each check compares."""

RUNGS = {
    "trained": "parameters after training, against before: they must differ",
    "reduced_once": "buckets of every step: each tensor is in one, and in one only",
    "reference": "the order that the replay adds in, against a sum in float64",
    "unwatched": "gradients of the first step, against DDP without the timing hook",
    "ranks": "final state of every rank, against rank 0",
    "data": "samples of every batch, against the replay",
    "precision": "the factor by which the loss is scaled, against the replay",
    "replay": "final state, against one process that computes shard after shard",
    "replay_gradients": "gradients at the recorded steps, against the same replay",
    "replay_parameters": "parameters at the recorded steps, against the same replay",
    "replay_buffers": "buffers at the recorded steps, against the same replay",
    "replay_losses": "the loss of every step, against the same replay",
    "witness_data": "who computed which samples, against the text: by the witness",
    "witness_hashes": "hashes that were recorded, against those of the tensors",
    "witness_step": "parameters after sampled steps, against the witness's optimizer",
    "witness_mean": "batches in training without dropout, against their parts",
    "witness_mean_in_eval": "the same in eval mode, where training draws more",
    "witness_buffers": "buffers that remember samples: whether the loss uses them",
    "witness_probe": "gradients in eval mode at the end, against the witness's",
    "witness_precision": "the same in 16 bits: as close as these are, and no closer",
    "witness_gradients": "gradients of sampled steps, against the witness's",
    "witness_loss": "losses of sampled steps, against the witness's",
    "witness_spread": "sampled steps with random numbers, against other draws",
    "one_process": "final state, against one process that takes the whole batch",
    "one_process_data": "samples of every batch, against the one-process run",
    "one_process_early": "state after the third step, against that one process",
    "one_process_gradients": "gradients of the first step, against that one process",
    "loss": "mean loss of the last quarter of the steps, against one process",
    "world_sizes": "final state, against that of the fewest processes",
}

TERMS = {
    "Parameters": (
        "The numbers that a model consists of. Training changes them; the state of a "
        "model is all of them."
    ),
    "Step, batch": (
        "A batch is the samples that are looked at together. Reading one and moving "
        "the parameters once is a step."
    ),
    "Loss": (
        "How badly the model predicts the next token: minus the natural logarithm of "
        "the probability that it gave to the right one, in the mean (nats)."
    ),
    "Gradients": (
        "How the loss changes with each parameter: which way to move it, and how much "
        "that matters."
    ),
    "Data-parallel training (DDP)": (
        "Every process holds a copy of the model and computes gradients on its part "
        "of the batch; all average their gradients, and each takes the same step. DDP "
        "is PyTorch's implementation."
    ),
    "Rank, world size": ("The number of a process, from 0, and how many there are."),
    "Shard": (
        "The samples that one rank reads: sample i belongs to the rank that is left "
        "over when i is divided by the number of ranks."
    ),
    "gloo, nccl": (
        "Libraries that carry the data: between CPUs, and between GPUs. gloo-2 is the "
        "run of two processes that used gloo."
    ),
    "All-reduce": (
        "Adding up numbers over all ranks so that each gets the sum. Its time in a "
        "step reaches from handing gradients over until they are reduced: it holds "
        "waiting for the other ranks, and for a core."
    ),
    "Tokens per second": (
        "Bytes of text learned from in a second, over all ranks, without padding."
    ),
    "p5, p50, p95": (
        "5, 50 (the median) or 95 % of the measured values lie below this one."
    ),
    "Noise floor": (
        "Identical arms, measured in turns, differ a little (A/A). The largest "
        "difference among the pairs of this run is the floor: one below it is not "
        "worth reporting. In another run identical arms may differ by more."
    ),
    "5-95 % interval": (
        "Where the figure falls in 90 % of the cases when it is computed again from "
        "values drawn at random from the measured ones (bootstrap)."
    ),
    "No communication (the ceiling)": (
        "The same processes side by side, each on its own: what DDP reaches at best."
    ),
    "Replay": (
        "One process that computes the ranks' shards one after the other and adds the "
        "gradients in the order in which the ranks did."
    ),
    "Witness": (
        "A small computation that shares no code with the run: it reads the text and "
        "the parameters itself, and works out in float64 which samples form a batch, "
        "their loss, its gradient and the optimizer's step."
    ),
    "Proven, proven in eval mode, replay only, undecided, breach": (
        "The verdict on a run. Proven: it has the bits of its replay, and the witness "
        "agrees. Proven in eval mode: training draws random numbers that are no "
        "dropout, so the witness agrees in eval mode only. Replay only: it has these "
        "bits, but what run and replay share was not computed independently. "
        "Undecided: its bits were not promised or not compared. Breach: some "
        "comparison fails."
    ),
    "ULP": (
        "Unit in the last place: how many steps from one representable number to the "
        "next lie between two values. 0 means the same number."
    ),
    "Within tolerance": (
        "Not the same bits: the same sums in another order or precision, so that "
        "rounding differs. The limit is set from how far rounding alone goes."
    ),
    "SHA-256": (
        "A fingerprint of a file in 64 digits, of which tables show 16: who changes "
        "one bit of the file gets another."
    ),
    "Data, wait": (
        "Getting the next batch ready; waiting for the slowest rank. Where there is "
        "one rank, wait is what a barrier itself costs."
    ),
    "Straggler": (
        "A rank that needs longer than the others for its own work, which is what it "
        "does before it has to wait for anybody. All wait for it, so a step takes as "
        "long as it does."
    ),
    "Interference": (
        "How much longer computing the gradients takes while they are being sent: a "
        "difference of two measurements, which noise can push below zero."
    ),
    "Exposed communication": (
        "Communication that remains after the last gradient is computed, so that "
        "nothing hides it."
    ),
    "Account": (
        "Where the time of a step goes, part by part. The parts were measured with "
        "instruments; they explain something where their sum is within 5 % of a step "
        "without any."
    ),
}
