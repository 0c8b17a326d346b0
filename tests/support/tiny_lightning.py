"""A training run of Lightning that takes no time: eight steps of a small model, the same numbers every time.

As a program it trains until it has a checkpoint after step 4, and kills itself in the middle of the next steps.
Step 4 ends an epoch: Lightning's own files, too, continue exactly from there only, since data loaders start anew.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from sdrs.lightning import SdrsCheckpointIO

STEPS = 8


class Model(L.LightningModule):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.Dropout(0.5), torch.nn.Linear(width, 1))

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        loss = self.layers(batch).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.05)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1)}


class SeededSteps(Callback):
    """Dropout's numbers depend on the step alone, so that a resumed run draws the same."""

    def on_train_batch_start(self, trainer: L.Trainer, *args: Any) -> None:
        torch.manual_seed(trainer.global_step)


class KilledAfter(Callback):
    def on_train_batch_end(self, trainer: L.Trainer, *args: Any) -> None:
        if trainer.global_step == 5:
            trainer.strategy.checkpoint_io.teardown()  # the checkpoint of step 4 is durable
            os.kill(os.getpid(), signal.SIGKILL)


def train(io: SdrsCheckpointIO, folder: Path, *callbacks: Callback, resume: bool = True, **options: Any) -> Model:
    torch.manual_seed(1)
    model = Model()
    data = torch.utils.data.DataLoader(torch.randn(4, 2, 8), batch_size=None)
    trainer = L.Trainer(
        default_root_dir=folder,
        max_steps=STEPS,
        accelerator="cpu",
        plugins=[io],
        callbacks=[SeededSteps(), ModelCheckpoint(**{"every_n_train_steps": 2, **options}), *callbacks],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, data, ckpt_path=io.resume_path() if resume else None)
    return model


if __name__ == "__main__":
    train(SdrsCheckpointIO(sys.argv[1]), Path(sys.argv[2]), KilledAfter())
