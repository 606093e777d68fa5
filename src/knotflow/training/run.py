"""Train a flow in a run folder; interrupted trainings resume."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from knotflow.errors import ConfigError
from knotflow.extras import optional
from knotflow.files import only_writer, read_json, remove_lock, write_json
from knotflow.flows import Flow, FlowConfig, load, save
from knotflow.inputs import refuse_others, refuse_strangers
from knotflow.progress import Progress, silent
from knotflow.ranks import agreed, leads, local_size, size
from knotflow.sentences import one_line
from knotflow.training.checkpoint import read_checkpoint, write_checkpoint
from knotflow.training.config import TrainingConfig
from knotflow.training.data import PIECE, check_data
from knotflow.training.marginals import fit_marginals
from knotflow.training.objectives import Batch, Metric, Mix, make_loss
from knotflow.training.replay import DrawPool

with optional("training runs"):
    import lightning.pytorch as pl
    from lightning.pytorch.loggers import Logger, TensorBoardLogger
    from lightning.pytorch.utilities.exceptions import SIGTERMException

    from knotflow.training.data_module import FlowData
    from knotflow.training.logs import CsvLog
    from knotflow.training.module import FlowModule, Monitor
    from knotflow.training.progress import ReportProgress

Energy = Callable[[Tensor], Tensor]

MODEL: Final = "model.safetensors"
"""Name of the model's file in a run folder."""
WRITTEN: Final = (MODEL, "initial.safetensors", "last.ckpt", "log.csv", "split.json")
"""Files in a run folder, beside ``config.json``."""


def fit(
    flow: Flow,
    train: Batch | Tensor,
    config: TrainingConfig | None = None,
    folder: str | Path = "runs/fit",
    *,
    validation: Batch | Tensor | None = None,
    energy: Energy | None = None,
    metric: Metric | None = None,
    monitor: Monitor | None = None,
    own: DrawPool | None = None,
    notes: dict[str, Any] | None = None,
    progress: Progress | None = None,
) -> Flow:
    """Train a flow and return the result, which is also saved as ``folder/model.safetensors``.

    The folder gets ``config.json``, ``log.csv``, ``last.ckpt`` (replaced at every checkpoint) and, at the
    end, ``model.safetensors``; TensorBoard's files go to ``tensorboard/`` if it is installed.

    Called again with the same arguments, an unfinished run resumes from its last checkpoint. On a CPU with
    the same number of threads the result is the same, bit for bit, as without the interruption. A finished
    run is loaded.

    Args:
        flow: the flow to train, built from a configuration, as by `Flow.on`; it is changed in place.
        train: training data; a tensor (n, d) means ``Batch(x)``.
        config: settings of the training.
        folder: the run folder.
        validation: data on which the losses are computed at every checkpoint.
        energy: maps points to reduced energies; needed only for the reverse divergence.
        metric: measure of force errors, see `ForceMatching`.
        monitor: computes numbers from the flow at every checkpoint, to be logged and shown.
        own: draws points of the flow to train on, see `knotflow.training.replay`; needed only with
            ``own_share``.
        notes: additional notes for the model file, anything JSON can hold.
        progress: called with the steps done when training begins, every ``log_every`` steps or ten seconds,
            and at the end; not at all if the run is already finished.

    Raises:
        ValueError: if data and configuration do not fit, or the folder holds another run.
    """
    config = TrainingConfig() if config is None else config
    folder = Path(folder)
    mix = make_loss(config.loss, energy, metric)
    if config.own_share and own is None:
        raise ValueError("own_share needs a function that draws samples: give own=..., or set it to 0.")
    train = _checked("training", flow, train, mix, config.batch_size)
    own_size = int(config.own_share * config.batch_size)
    if max(own_size, config.batch_size - own_size) < size():
        raise ValueError(
            f"each of {size()} processes needs a point of every batch, got batches of {config.batch_size}; "
            "raise the batch size, or start fewer processes."
        )
    if validation is not None:
        validation = _checked("validation", flow, validation, mix, 1)
    if flow.config is None:
        raise ValueError(
            "only a flow built from a configuration can be trained in a folder; use Flow.on or FlowConfig."
        )
    made = {"training": config.plain(), "data": fingerprint(train)}
    model, progress = folder / MODEL, progress or silent
    initial, last = folder / "initial.safetensors", folder / "last.ckpt"
    # Files are read and written by rank 0 alone, which tells the others what it found.
    if leads():
        _claim(folder, {"flow": flow.config.plain(), **made})
    found = agreed(load(model) if leads() and model.exists() else None)
    if found is not None:
        if leads():
            remove_lock(model)
            initial.unlink(missing_ok=True)
        return found

    checkpoint = agreed(read_checkpoint(last) if leads() and last.exists() else None)
    if checkpoint is None:
        if leads():
            _begin(flow, train, config, initial, progress)
        flow.load_state_dict(agreed(flow.state_dict()))
    module = FlowModule(flow, mix, config, monitor, own)
    done = 0
    if checkpoint is not None:
        try:
            module.restore(checkpoint["state"])
            module.seconds, done = checkpoint["seconds"], checkpoint["blocks"]
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise ValueError(
                f"{last} is not the checkpoint of this training ({one_line(error)}); remove it to start over."
            ) from None
    data = FlowData(train, validation, config, done=done, own=module.own_samples)
    with _alone(model):
        if data.blocks_left:
            callbacks = [_SaveBlocks(last, module, data), ReportProgress(progress, module, data)]
            with warnings.catch_warnings(), _interruptible():
                # Advice on data loaders and devices that does not apply here.
                warnings.filterwarnings("ignore", module="lightning")
                _trainer(folder, callbacks, data).fit(module, datamodule=data)
        if leads():
            save(module.model, model, **{**(notes or {}), **made, "seconds": module.seconds})
            initial.unlink(missing_ok=True)
    return agreed(load(model) if leads() else module.model)


def _begin(flow: Flow, train: Batch, config: TrainingConfig, initial: Path, progress: Progress) -> None:
    """Bring a flow to where the training proper begins; what that is, is kept in a file."""
    if initial.exists():
        flow.load_state_dict(load(initial).state_dict())
    else:
        fit_marginals(
            flow, train.x, config.marginals, context=train.context, seed=config.seed, progress=progress
        )
        save(flow, initial)


def fingerprint(data: Batch) -> str:
    """A short hash of training data, so that a run is not continued with other data."""
    digest = hashlib.sha256()
    for name, part in data._asdict().items():
        if part is None:
            digest.update(b"-" if name in ("force", "context") else b"")
        else:
            for rows in part.detach().split(PIECE):
                digest.update(rows.cpu().contiguous().numpy())
    return digest.hexdigest()[:16]


class _SaveBlocks(pl.Callback):
    """Writes the checkpoint after every block of steps."""

    def __init__(self, path: Path, module: FlowModule, data: FlowData) -> None:
        self.path, self.module, self.data = path, module, data
        self.started = 0.0

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.started = time.perf_counter()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.is_global_zero:
            module = self.module
            module.seconds += time.perf_counter() - self.started
            checkpoint = {"blocks": self.data.block + 1, "seconds": module.seconds, "state": module.state()}
            write_checkpoint(self.path, checkpoint)


def _alone(model: Path) -> contextlib.AbstractContextManager[None]:
    """Keep other trainings out of the folder; the processes of one training have one lock together."""
    return only_writer(model) if leads() else contextlib.nullcontext()


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end the program as usual.

    Lightning itself would end it as if all were well, and then ignore Ctrl-C.
    """
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    except SIGTERMException:
        raise SystemExit(128 + signal.SIGTERM) from None
    except SystemExit as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            signal.signal(signal.SIGINT, handler)
            raise error.__context__ from None  # which of them it was
        raise


def _trainer(folder: Path, callbacks: list[pl.Callback], data: FlowData) -> pl.Trainer:
    resume_at = data.done * data.config.checkpoint_every
    loggers: list[Logger] = [CsvLog(folder / "log.csv", resume_at)]
    with contextlib.suppress(ModuleNotFoundError):  # TensorBoard is optional
        # purge_step hides rows that an interrupted run logged after its last checkpoint.
        loggers.append(TensorBoardLogger(folder, name="tensorboard", version="", purge_step=resume_at))
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    # Every rank is a process that torchrun has started; without it, one process trains on one device.
    several: dict[str, Any] = {"strategy": "ddp", "num_nodes": size() // local_size()} if size() > 1 else {}
    return pl.Trainer(
        devices=local_size(),
        **several,
        max_epochs=data.blocks_left,
        reload_dataloaders_every_n_epochs=1,
        logger=loggers,
        callbacks=callbacks,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        limit_val_batches=None if data.validation else 0,
        log_every_n_steps=data.config.log_every,
        use_distributed_sampler=False,
    )


def _checked(name: str, flow: Flow, points: Batch | Tensor, mix: Mix, least: int) -> Batch:
    """The data, unless the loss cannot be computed on them."""
    data = Batch(points) if isinstance(points, Tensor) else Batch(*points)
    check_data(name, data, least)
    if mix.needs_force and data.force is None:
        raise ValueError(
            f"loss.force_matching needs forces of the {name} data: give Batch(x, force=...), or set it to 0."
        )
    if mix.needs_target and data.log_target is None:
        raise ValueError(
            f"loss.energy_matching needs densities of the {name} data: give Batch(x, log_target=...), or set "
            "it to 0."
        )
    if data.force is not None and data.force.shape != data.x.shape:
        raise ValueError(
            f"forces of the {name} data must have the shape {tuple(data.x.shape)} of the points, got "
            f"{tuple(data.force.shape)}."
        )
    flow.check(data.x, data.context)
    return data


def _claim(folder: Path, description: dict[str, Any]) -> None:
    """Write ``config.json``, or refuse a folder that holds another run."""
    path = folder / "config.json"
    refuse_strangers(path, "a training", [folder / name for name in WRITTEN])
    if not path.exists():
        write_json(path, description)
        return
    found = read_json(path, "flow", "training")
    if not isinstance(found["training"], dict):
        raise ValueError(f"{path} is damaged: 'training' must be a table of settings; remove it.")
    with contextlib.suppress(ConfigError, KeyError):
        found["flow"] = FlowConfig.read(found["flow"]).plain()  # as this version writes it
        if (folder / MODEL).exists():
            # The model of a finished run is returned with the networks it has, so their inputs may differ.
            for flow in (found["flow"], description["flow"]):
                for coupling in flow["couplings"]:
                    del coupling["conditioner"]["unit_spread"]
        found["training"].pop("own_after", None)  # of version 0.2
        found["training"] = TrainingConfig.parse(found["training"]).plain()
    # Compiled or not, the result is the same; earlier versions compiled by default.
    training = {**description["training"], "compile": found["training"].get("compile")}
    refuse_others(folder, "a run", found, {**description, "training": training})
