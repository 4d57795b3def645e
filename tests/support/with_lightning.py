"""A loop of Lightning, recorded by the callback, or not: ``--plain`` leaves it out."""

import os
import sys
import warnings

import torch
from setting import GPT, arguments, make_samples
from torch.utils.data import DataLoader, DistributedSampler

if os.environ.get("LIGHTNING") == "pytorch_lightning":
    import pytorch_lightning as lightning
else:
    import lightning.pytorch as lightning

from minitrain.callbacks import LightningCallback

plain = "--plain" in sys.argv
sys.argv = [one for one in sys.argv if one != "--plain"]
args = arguments(bug="the learning rate grows with the ranks, but the batch does not")
world_size = int(os.environ.get("WORLD_SIZE", 1))


class Trained(lightning.LightningModule):
    """Module that contains the model and has its own forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.model = GPT(args.dropout)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.model(rows)

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        if os.environ.get("FAILS_AT") == str(batch_idx):
            raise ValueError("mine")
        # the command sees calls of modules alone, the callback each training step
        return self(batch) if plain else self.model(batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        rate = 3e-3 * (world_size if args.bug else 1)
        return torch.optim.AdamW(self.parameters(), lr=rate)


warnings.simplefilter("ignore")
lightning.seed_everything(args.seed)
samples = make_samples()
rank = int(os.environ.get("RANK", 0))
sampler = DistributedSampler(samples, world_size, rank, seed=args.seed)
loader = DataLoader(samples, batch_size=12 // world_size, sampler=sampler)
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=world_size,
    strategy="ddp" if world_size > 1 else "auto",
    max_steps=args.steps,
    accumulate_grad_batches=2,
    gradient_clip_val=1.0,
    callbacks=[] if plain else [LightningCallback(args.folder)],
    use_distributed_sampler=False,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Trained(), loader)
