import json

from laconic.records import EpochRecord
from laconic.trainer.state import TrainingState


def finished_epoch(state: TrainingState, val: float | None) -> EpochRecord:
    state.count_step(1.0, num_rows=4, seconds=0.5, wait_seconds=0.1)
    record = state.close_epoch(state.loss, {} if val is None else {"train": 1.0, "val": val, "test": 0.5}, 0.25)
    if state.is_better(record):
        state.best = record
    return record


def test_the_loss_of_an_epoch_is_the_mean_over_rows_not_over_steps():
    state = TrainingState()
    state.count_step(1.0, num_rows=3, seconds=0.5, wait_seconds=0.0)
    state.count_step(2.0, num_rows=1, seconds=0.25, wait_seconds=0.125)
    record = state.close_epoch(state.loss, {"train": 0.1, "val": 0.2, "test": 0.3}, 0.0625)
    assert record == EpochRecord(1, 1.25, 0.1, 0.2, 0.3, seconds=0.75, evaluate_seconds=0.0625, wait_seconds=0.125)
    assert state == TrainingState(epoch=1)


def test_the_best_epoch_is_the_earliest_of_those_with_the_highest_validation_score():
    state = TrainingState()
    for val in (0.5, 0.7, 0.7, None, 0.6):
        finished_epoch(state, val)
    assert state.best is not None
    assert (state.best.epoch, state.best.val) == (2, 0.7)


def test_patience_is_counted_in_epochs_since_the_best():
    state = TrainingState()
    exhausted = []
    for val in (0.5, 0.7, 0.7, None, 0.6, 0.8):
        finished_epoch(state, val)
        exhausted.append(state.is_exhausted(patience=3))
    assert exhausted == [False, False, False, False, True, False]
    assert not state.is_exhausted(patience=0)
    assert [state.is_exhausted(patience=3, at=epoch) for epoch in (6, 8, 9)] == [False, False, True]


def test_a_state_comes_back_from_json_in_the_middle_of_an_epoch():
    state = TrainingState()
    finished_epoch(state, 1 / 3)
    state.count_step(0.1 + 0.2, num_rows=7, seconds=1 / 7, wait_seconds=0.0)
    assert TrainingState.from_json(json.loads(json.dumps(state.to_json()))) == state
