import json

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW

from laconic.errors import CheckpointError
from laconic.trainer.checkpoint import Checkpoints
from laconic.trainer.snapshot import Snapshot, copy_model, copy_optimizer, load_model, load_optimizer


def complete(epoch: int, step: int = 0) -> Snapshot:
    model = {"weight": torch.full((3, 2), float(epoch)), "count": torch.tensor(epoch)}
    return Snapshot(epoch, step, model, {"0.exp_avg": torch.ones(3, 2), "torch_rng": torch.arange(9)}, {"a": [1, 2.5]})


def model_only(epoch: int) -> Snapshot:
    return Snapshot(epoch, 0, {"weight": torch.full((3, 2), float(epoch))})


@pytest.fixture
def checkpoints(tmp_path):
    return Checkpoints(tmp_path / "checkpoints")


def folders(checkpoints: Checkpoints) -> list[str]:
    return sorted(entry.name for entry in checkpoints.folder.iterdir() if entry.is_dir())


def test_what_was_saved_comes_back(checkpoints):
    saved = complete(7, step=3)
    checkpoints.save(last=saved, best=model_only(5))
    last, best = checkpoints.load("last"), checkpoints.load("best")
    assert (last.epoch, last.step, last.notes) == (7, 3, {"a": [1, 2.5]})
    for mine, back in ((saved.model, last.model), (saved.training, last.training), (model_only(5).model, best.model)):
        assert list(mine) == list(back) or set(mine) == set(back)
        assert all(torch.equal(mine[key], back[key]) for key in mine)
    assert last.is_complete
    assert not best.is_complete


def test_only_the_last_and_the_best_are_kept(checkpoints):
    checkpoints.save(last=complete(10), best=model_only(8))
    assert folders(checkpoints) == ["epoch_000008", "epoch_000010"]
    checkpoints.save(last=complete(20), best=None)
    assert folders(checkpoints) == ["epoch_000008", "epoch_000020"]
    checkpoints.save(last=complete(30, step=4), best=model_only(27))
    assert folders(checkpoints) == ["epoch_000027", "epoch_000030_step_000004"]
    assert json.loads((checkpoints.folder / "index.json").read_text()) == {
        "best": "epoch_000027",
        "last": "epoch_000030_step_000004",
    }


def test_when_the_last_is_the_best_one_folder_serves_both(checkpoints):
    checkpoints.save(last=complete(10), best=model_only(10))
    assert folders(checkpoints) == ["epoch_000010"]
    assert checkpoints.load("last").is_complete
    checkpoints.save(last=complete(20), best=None)
    assert folders(checkpoints) == ["epoch_000010", "epoch_000020"]


def test_a_best_alone_leaves_the_last_as_it_is_and_may_become_the_last_later(checkpoints):
    checkpoints.save(last=complete(10), best=model_only(10))
    checkpoints.save(last=None, best=model_only(12))
    assert (checkpoints.load("last").epoch, checkpoints.load("best").epoch) == (10, 12)
    checkpoints.save(last=complete(12), best=None)
    assert checkpoints.load("last").is_complete
    assert checkpoints.load("best").epoch == 12


def test_left_overs_of_a_crash_are_neither_taken_for_checkpoints_nor_kept(checkpoints):
    checkpoints.save(last=complete(10), best=None)
    for name in (".123.tmp.epoch_000020", "epoch_000020"):
        (checkpoints.folder / name).mkdir()
        (checkpoints.folder / name / "model.safetensors").write_bytes(b"half")
    assert checkpoints.load("last").epoch == 10
    checkpoints.save(last=complete(20), best=None)
    assert folders(checkpoints) == ["epoch_000020"]
    assert checkpoints.load("last").epoch == 20


def test_a_save_that_fails_leaves_the_old_checkpoint_and_no_half_one(checkpoints):
    checkpoints.save(last=complete(10), best=None)
    spoilt = Snapshot(20, 0, {"weight": torch.ones(2)}, {"torch_rng": torch.ones(2)}, {"not json": object()})
    with pytest.raises(TypeError):
        checkpoints.save(last=spoilt, best=None)
    assert folders(checkpoints) == ["epoch_000010"]
    assert checkpoints.load("last").epoch == 10


def test_a_full_disk_is_an_error_that_names_the_folder_and_harms_nothing(checkpoints, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    checkpoints.save(last=complete(10), best=None)
    monkeypatch.setattr("laconic.trainer.snapshot.save_file", full)
    with pytest.raises(CheckpointError, match=r"checkpoints: .*No space left"):
        checkpoints.save(last=complete(20), best=None)
    assert folders(checkpoints) == ["epoch_000010"]


@pytest.mark.parametrize("name", ["model.safetensors", "training.safetensors", "manifest.json"])
@pytest.mark.parametrize("harm", ["cut", "altered", "gone"])
def test_a_harmed_file_is_an_error_that_names_it(checkpoints, name, harm):
    checkpoints.save(last=complete(10), best=None)
    path = checkpoints.folder / "epoch_000010" / name
    content = path.read_bytes()
    if harm == "gone":
        path.unlink()
    elif harm == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif name == "manifest.json":
        path.write_bytes(content.replace(b'"format": 1', b'"format": 9'))
    else:
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(CheckpointError, match=name):
        checkpoints.load("last")


def test_a_manifest_that_says_something_else_than_it_said_is_refused(checkpoints):
    checkpoints.save(last=complete(10), best=None)
    path = checkpoints.folder / "epoch_000010" / "manifest.json"
    path.write_text(path.read_text().replace('"epoch": 10', '"epoch": 11'))
    with pytest.raises(CheckpointError, match=r"manifest\.json does not agree with its checksum"):
        checkpoints.load("last")


@pytest.mark.parametrize("text", ["", "[]", '{"last": 3}', '{"last": "../../etc"}', '{"last": "epoch_1/../../x"}'])
def test_an_index_that_is_not_one_is_refused(checkpoints, text):
    checkpoints.save(last=complete(10), best=None)
    (checkpoints.folder / "index.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"index\.json"):
        checkpoints.load("last")


def test_a_checkpoint_that_never_was_is_said_so(checkpoints):
    with pytest.raises(CheckpointError, match="before its first checkpoint"):
        checkpoints.load("last")
    checkpoints.save(last=complete(1), best=None)
    with pytest.raises(CheckpointError, match="names no best"):
        checkpoints.load("best")


@pytest.mark.parametrize(
    "build",
    [
        lambda weights: Adam(weights, lr=0.1, fused=True),
        lambda weights: AdamW(weights, lr=0.1, fused=True),
        lambda weights: SGD(weights, lr=0.1, momentum=0.9, fused=True),
        lambda weights: SGD(weights, lr=0.1, fused=True),
    ],
)
@pytest.mark.parametrize("steps_before", [0, 3])
def test_an_optimizer_goes_on_as_if_it_had_never_stopped(build, steps_before):
    def trained(model: nn.Module, optimizer: torch.optim.Optimizer, num_steps: int) -> None:
        for _ in range(num_steps):
            optimizer.zero_grad()
            model(torch.ones(2, 3)).square().sum().backward()
            optimizer.step()

    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = build(model.parameters())
    trained(model, optimizer, steps_before)
    weights, (tensors, rest) = copy_model(model), copy_optimizer(optimizer)
    trained(model, optimizer, 3)

    again = nn.Linear(3, 2)
    optimizer_again = build(again.parameters())
    again.load_state_dict(weights)
    load_optimizer(optimizer_again, tensors, json.loads(json.dumps(rest)))
    trained(again, optimizer_again, 3)
    assert torch.equal(again.weight, model.weight)
    assert torch.equal(again.bias, model.bias)


def test_a_copy_of_a_model_does_not_change_with_it():
    model = nn.Linear(3, 2)
    before = copy_model(model)
    with torch.no_grad():
        model.weight.add_(1)
    assert not torch.equal(before["weight"], model.weight)


def test_weights_that_share_memory_are_saved_each(checkpoints):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    checkpoints.save(last=Snapshot(1, 0, copy_model(model)), best=None)
    assert torch.equal(checkpoints.load("last").model["1.weight"], model[0].weight)


def test_weights_of_another_model_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"does not fit this model \(Linear\): weight: expected 4x3, came 2x3"):
        load_model(nn.Linear(3, 4), Snapshot(1, 0, copy_model(nn.Linear(3, 2))), tmp_path)


def test_a_misfit_names_the_first_few_and_changes_no_weight(tmp_path):
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2), nn.Linear(2, 2))
    before = copy_model(model)
    other = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 5), nn.Linear(5, 2, bias=False), nn.Linear(2, 2))
    with pytest.raises(CheckpointError) as refused:
        load_model(model, Snapshot(1, 0, copy_model(other)), tmp_path)
    assert (
        "1.weight: expected 2x2, came 5x2; 1.bias: expected 2, came 5; 2.weight: expected 2x2, came 2x5; and 3 more."
        in str(refused.value)
    )
    assert "\n" not in str(refused.value)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_a_name_that_one_side_lacks_is_a_misfit(tmp_path):
    with pytest.raises(CheckpointError, match="bias: expected nothing, came 2"):
        load_model(nn.Linear(3, 2, bias=False), Snapshot(1, 0, copy_model(nn.Linear(3, 2))), tmp_path)
    with pytest.raises(CheckpointError, match="bias: expected 2, came nothing"):
        load_model(nn.Linear(3, 2), Snapshot(1, 0, copy_model(nn.Linear(3, 2, bias=False))), tmp_path)


def test_a_lazy_model_takes_the_shapes_that_come(tmp_path):
    model = nn.LazyLinear(2)
    load_model(model, Snapshot(1, 0, copy_model(nn.Linear(3, 2))), tmp_path)
    assert model.weight.shape == (2, 3)
