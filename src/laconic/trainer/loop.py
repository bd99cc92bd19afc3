"""The story of a run. Read it top to bottom: epochs of steps, a score, a row, now and then a checkpoint.

It knows neither files nor flags, nor how ranks share the work: those are the parts of `Run`.
"""

import time
from contextlib import nullcontext
from typing import Literal, NoReturn

import torch
from torch import Tensor

from laconic.attach.forward import run_model
from laconic.errors import DivergedError, UnsupportedModelError
from laconic.session.objective import nothing, usual_loss
from laconic.trainer.batches import Batch
from laconic.trainer.run import Run

Ending = Literal["finished", "stopped early", "interrupted"]


def train(run: Run) -> Ending:
    """Trains until the last epoch, until nothing gets better, or until it is interrupted, and says which."""
    config = run.config.training
    run.model.train()
    try:
        while run.state.epoch < config.epochs:
            if run.state.is_exhausted(config.patience):
                return "stopped early"
            if not train_epoch(run):
                check_epoch(run)
                run.count_traffic()
                run.save()
                return "interrupted"
            close_epoch(run)
            # Asked once: a signal between two questions would end the run without its checkpoint.
            is_interrupted = run.is_interrupted()
            run.count_traffic()
            if is_interrupted or is_checkpoint_due(run):
                run.save()
            if is_interrupted and run.state.epoch < config.epochs:
                return "interrupted"
    except DivergedError as error:
        explain_divergence(run, error)
    return "finished"


def train_epoch(run: Run) -> bool:
    """Trains the steps of an epoch that are still to do; returns whether it came to the end of it."""
    state, epoch = run.state, run.state.epoch + 1
    since = time.perf_counter()
    shard = run.session.start_epoch(epoch, state.step)
    state.count_switch(time.perf_counter() - since)
    batches = run.prepared.batches.of_epoch(epoch, shard, start_step=state.step)
    try:
        since = time.perf_counter()
        for batch in batches:
            loss = train_step(run, batch)
            now = time.perf_counter()
            state.count_step(loss, num_rows=batch.num_rows, seconds=now - since, wait_seconds=batch.wait_seconds)
            since = now
            if state.step < run.prepared.batches.num_steps and run.is_interrupted():
                return False
    finally:
        batches.close()
    return True


def train_step(run: Run, batch: Batch) -> float:
    """Takes one step of the optimizer and returns the loss before it."""
    session, worker = run.session, run.session.worker
    # Backward too: a part of the model that is run again there has to see the same edges.
    with worker.using_batch(batch.shard) if batch.is_drawn else nullcontext():
        if batch.is_empty and batch.is_drawn:
            # Others have rows in this step, and wait for this rank's part of the gradients: nothing.
            loss = worker.share_loss(nothing(run.model), 0.0)
        else:
            out = run_model(run.model, batch.shard)
            check_outputs(run, out, len(batch.shard.y))
            loss = session.loss(usual_loss(batch.shard.y), out, batch.shard, batch.factors)
        run.prepared.optimizer.zero_grad()
        torch.autograd.backward(loss)
    # Before the step: a loss that is NaN has gradients that are, and the weights would be lost.
    value = loss.item()
    check_loss(value)
    run.prepared.optimizer.step()
    return value


def close_epoch(run: Run) -> None:
    """Scores the model where a score is due, and records the epoch."""
    loss = check_epoch(run)
    config, epoch = run.config.training, run.state.epoch + 1
    # Where patience ends, a score decides whether training does.
    is_last = epoch == config.epochs or run.state.is_exhausted(config.patience, at=epoch)
    is_due = is_last or epoch % config.evaluation_interval == 0
    since = time.perf_counter()
    if is_due:
        run.outputs.display.phase("Evaluating on the whole graph")
    scores = run.prepared.evaluation(run.model, run.session.shard) if is_due else {}
    record = run.state.close_epoch(loss, scores, time.perf_counter() - since)
    if run.state.is_better(record):
        run.keep_as_best(record)
    run.outputs.tell(record, run.prepared.evaluation.metric)
    run.outputs.tell_coverage(run.session.worker.take_records())


def check_epoch(run: Run) -> float:
    """Returns the loss of the epoch so far; raises DivergedError rather than let a spoilt model be scored or saved."""
    if not all(bool(torch.isfinite(parameter).all()) for parameter in run.model.parameters()):
        raise DivergedError("A weight became infinite or NaN.")
    check_loss(run.state.loss)
    return run.state.loss


def check_outputs(run: Run, out: object, num_rows: int) -> None:
    """Raises UnsupportedModelError unless a model, of the user's own, gave a number for each row and class."""
    num_classes = run.session.num_classes
    if isinstance(out, Tensor) and out.dim() == 2 and len(out) == num_rows:
        # A model may know classes that this graph has none of.
        has_more = out.shape[1] > num_classes and not run.prepared.evaluation.is_multilabel
        if out.shape[1] == num_classes or has_more:
            return
    came = f"a tensor of shape {tuple(out.shape)}" if isinstance(out, Tensor) else f"a {type(out).__name__}"
    raise UnsupportedModelError(
        f"{type(run.model).__name__} should give one number for each class: a tensor of shape "
        f"{(num_rows, num_classes)} for {num_rows} nodes and {num_classes} classes. It gave {came}. Let its last layer "
        f"be as wide as there are classes; a parameter called out_channels is filled in with that number."
    )


def check_loss(value: float) -> None:
    """Raises DivergedError if a loss is no number to learn from."""
    if not abs(value) < float("inf"):
        raise DivergedError(f"The loss became {value}.")


def is_checkpoint_due(run: Run) -> bool:
    """Whether this epoch is one of every few, or the last one."""
    config, epoch = run.config, run.state.epoch
    is_last = epoch == config.training.epochs or run.state.is_exhausted(config.training.patience)
    return epoch % config.run.checkpoint_every == 0 or is_last


def explain_divergence(run: Run, error: DivergedError) -> NoReturn:
    """Keeps the best model seen, and says when it happened and what may help."""
    run.save_best()
    raise DivergedError(
        f"{error} This happened in epoch {run.state.epoch + 1}, with lr={run.config.training.lr}. Lower training.lr, "
        f"or normalise the features. {run.outputs.describe()}"
    ) from error
