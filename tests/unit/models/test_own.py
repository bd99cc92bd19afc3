"""A model of the user's own code: found, filled in, refused by name."""

import sys

import pytest
import torch
from torch import nn

from laconic.errors import CheckpointError, ConfigError
from laconic.models import build_model, parse_model
from laconic.models.own import own_model
from laconic.models.own_code import import_code, read_code
from laconic.trainer.config import Config
from laconic.trainer.config_file import as_layer, model_layer, parse_override, resolve
from laconic.trainer.settings import list_settings

NET = """
from torch import nn
from torch_geometric.nn import GCNConv

TABLE = {"a": 1}

class Net(nn.Module):
    def __init__(self, in_channels, num_classes, hidden=16, dropout=0.5, act="relu", deep=False):
        super().__init__()
        self.first = GCNConv(in_channels, hidden)
        self.second = GCNConv(hidden, num_classes)

    def forward(self, x, edge_index):
        return self.second(self.first(x, edge_index).relu(), edge_index)

class Wide(nn.Module):
    def __init__(self, in_size, out_channels):
        super().__init__()

class Breaks(nn.Module):
    def __init__(self, in_channels):
        super().__init__()
        nn.Linear(-1, "x")

class NoModel:
    pass

def build(nfeat, nclass, hidden=4):
    return Net(nfeat, nclass, hidden)

def gives_text():
    return "a model"
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_model.py").write_text(NET)
    return tmp_path / "my_model.py"


@pytest.mark.parametrize("spec", ["my_model.py:Net", "my_model.py:build", "my_model:Net"])
def test_a_class_a_function_and_a_module_get_the_widths_of_the_graph(file, spec):
    model = build_model(parse_model(spec), num_features=11, num_classes=3, seed=0)
    assert model.first.in_channels == 11
    assert model.second.out_channels == 3


def test_settings_come_from_the_spec_and_from_set(file):
    layers = [model_layer("my_model.py:Net(hidden=64)"), parse_override("model.dropout=0")]
    config = resolve(layers)
    section = as_layer(config)["model"]
    assert section == {
        "name": "Net",
        "source": str(file),
        "sha256": read_code(str(file)).sha256,
        "hidden": 64,
        "dropout": 0.0,
        "act": "relu",
        "deep": False,
    }
    assert resolve([as_layer(config)]) == config
    assert build_model(config.model, num_features=2, num_classes=2, seed=0).first.out_channels == 64


def test_a_width_that_is_given_is_not_filled_in(file):
    model = build_model(parse_model("my_model.py:Net(num_classes=9)"), num_features=2, num_classes=4, seed=0)
    assert model.second.out_channels == 9


def test_first_weights_follow_the_seed_and_nothing_else(file):
    before = torch.get_rng_state()
    one, same, other = (
        build_model(parse_model("my_model.py:Net"), num_features=5, num_classes=2, seed=seed) for seed in (1, 1, 2)
    )
    assert torch.equal(one.first.lin.weight, same.first.lin.weight)
    assert not torch.equal(one.first.lin.weight, other.first.lin.weight)
    assert torch.equal(before, torch.get_rng_state())


def test_an_installed_package_is_a_source_too(tmp_path):
    spec = parse_model("torch_geometric.nn.models:GCN(hidden_channels=8, num_layers=2)")
    assert build_model(spec, num_features=5, num_classes=3, seed=0).out_channels == 3
    spec.code.keep(tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("gone.py:Net", r"There is no model file .*gone\.py\..*FILE\.py:NAME"),
        ("no_such_package.models:Net", r"There is no module 'no_such_package\.models'"),
        ("my_model.py", r"does not say which class"),
        ("my_model.py:Nett", r"it has no 'Nett'\. It has `Net`, `Wide`, `Breaks`, `build` and `gives_text`"),
        ("my_model.py:TABLE", r"its TABLE is a dict"),
        ("my_model.py:NoModel", r"its NoModel is a class of another kind"),
        ("my_model.py:Net(hiden=3)", r"Unknown setting of model Net 'hiden'.*Did you mean 'hidden'"),
        ("my_model.py:Net(hidden='x')", r"model\.hidden should be a number, such as 16; got 'x'"),
        ("my_model.py:Net(deep=3)", r"model\.deep should be true or false"),
        ("my_model.py:Net(act=3)", r"model\.act should be a text"),
        ("my_model.py:Net(name='x')", r"cannot be called 'name'"),
    ],
)
def test_what_cannot_be_used_is_refused_before_a_graph_is_read(file, spec, words):
    with pytest.raises(ConfigError, match=words):
        resolve([model_layer(spec)])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import torch\n\nx = 1 / 0\n", r"ZeroDivisionError: division by zero \(.*bad\.py, line 3\)"),
        ("def broken(:\n", r"SyntaxError: .*\(.*bad\.py, line 1\)"),
        ("import no_such_thing\n", r"ModuleNotFoundError.*no_such_thing.*line 1"),
        ("import sys\nsys.exit(3)\n", r"ends the program.*line 2.*__main__"),
    ],
)
def test_a_file_that_raises_is_told_with_its_line(tmp_path, text, words):
    (tmp_path / "bad.py").write_text(text)
    with pytest.raises(ConfigError, match=words):
        parse_model(f"{tmp_path}/bad.py:Net")
    assert not [name for name in sys.modules if name.startswith("bad_")]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Wide", r"Wide needs `in_size`.*-s model\.in_size=NUMBER.*1433 features and 7 classes.*in_channels"),
        ("Breaks", r"Breaks\(in_channels=1433\) cannot be built: .*my_model\.py, line \d+\)"),
        ("gives_text", r"should give a torch\.nn\.Module; it gave a str"),
    ],
)
def test_what_cannot_be_built_is_told_with_the_widths_of_the_graph(file, name, words):
    with pytest.raises(ConfigError, match=words):
        build_model(parse_model(f"my_model.py:{name}"), num_features=1433, num_classes=7, seed=0)


def test_files_beside_the_model_are_kept_with_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts/__init__.py").write_text("")
    (tmp_path / "parts/deep.py").write_text("WIDTH = 5\n")
    (tmp_path / "layers_beside.py").write_text("from parts import deep\nWIDTH = deep.WIDTH\n")
    (tmp_path / "unrelated.py").write_text("")
    (tmp_path / "mine.py").write_text(
        "from torch import nn\nimport layers_beside\n"
        "class Net(nn.Linear):\n    def __init__(self):\n        super().__init__(layers_beside.WIDTH, 1)\n"
    )
    code = read_code("mine.py")
    assert sorted(code.files) == ["layers_beside.py", "mine.py", "parts/__init__.py", "parts/deep.py"]
    assert parse_model("mine.py:Net").build(1, 1).in_features == 5
    code.keep(tmp_path / "kept")
    # The original changes, and with it what is imported already: the copy is what it was.
    (tmp_path / "parts/deep.py").write_text("WIDTH = 6666\n")
    assert parse_model("mine.py:Net").sha256 != code.sha256
    assert parse_model("mine.py:Net").build(1, 1).in_features == 6666
    kept = own_model(str(tmp_path / "mine.py"), "Net", {}, sha256=code.sha256, kept=tmp_path / "kept")
    assert kept.build(1, 1).in_features == 5
    assert kept.changed_since is None
    assert "has changed since" in kept.describe_origin()
    (tmp_path / "kept/parts/deep.py").write_text("WIDTH = 7\n")
    with pytest.raises(CheckpointError, match=r"was altered.*Restore it from .*mine\.py"):
        own_model(str(tmp_path / "mine.py"), "Net", {}, sha256=code.sha256, kept=tmp_path / "kept")


def test_a_constructor_may_import_files_beside_the_model(tmp_path, monkeypatch):
    for folder, width in (("one", 3), ("other", 5)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "widths_beside.py").write_text(f"WIDTH = {width}\nMARK = object()\n")
        (tmp_path / folder / "mine.py").write_text(
            "from torch import nn\nimport widths_beside\n"
            "class Net(nn.Linear):\n    def __init__(self):\n"
            "        from widths_beside import MARK, WIDTH\n"
            "        assert MARK is widths_beside.MARK\n"
            "        super().__init__(WIDTH, 1)\n"
            "class Late(nn.Linear):\n    def __init__(self):\n"
            "        import later_beside\n        super().__init__(later_beside.WIDTH, 1)\n"
        )
        (tmp_path / folder / "later_beside.py").write_text(f"WIDTH = {10 * width}\n")
    path = list(sys.path)
    specs = {
        folder: [parse_model(f"{tmp_path}/{folder}/mine.py:{name}") for name in ("Net", "Late")]
        for folder in ("one", "other")
    }
    for folder, width in (("one", 3), ("other", 5), ("one", 3)):
        net, late = (build_model(spec, num_features=1, num_classes=1, seed=0) for spec in specs[folder])
        assert (net.in_features, late.in_features) == (width, 10 * width)
    assert sys.path == path


def test_a_module_of_a_package_is_kept_with_what_it_imports_relatively(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    package = tmp_path / "own_package_a"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "widths.py").write_text("WIDTH = 5\n")
    (package / "nets.py").write_text(
        "from torch import nn\nfrom .widths import WIDTH\ndef build():\n    return nn.Linear(WIDTH, 1)\n"
    )
    code = read_code("own_package_a.nets")
    assert sorted(code.files) == [f"own_package_a/{name}.py" for name in ("__init__", "nets", "widths")]
    code.keep(tmp_path / "kept")
    (package / "widths.py").write_text("WIDTH = 6666\n")
    kept = own_model("own_package_a.nets", "build", {}, sha256=code.sha256, kept=tmp_path / "kept")
    assert kept.build(1, 1).in_features == 5


def test_code_is_executed_once_in_a_process(tmp_path):
    (tmp_path / "counts.py").write_text(
        f"with open({str(tmp_path / 'log')!r}, 'a') as log:\n    log.write('x')\ndef build():\n    pass\n"
    )
    assert import_code(read_code(f"{tmp_path}/counts.py")) is import_code(read_code(f"{tmp_path}/counts.py"))
    assert (tmp_path / "log").read_text() == "x"


def test_the_settings_of_an_own_model_are_listed(file):
    rows = {row.name: row for row in list_settings("my_model.py:Net")}
    assert rows["model.hidden"].default == "16"
    assert "number of features" in rows["model.in_channels"].explanation
    assert "to be given" in {row.name: row for row in list_settings("my_model.py:Wide")}["model.in_size"].explanation


def test_another_model_takes_none_of_its_settings(file):
    config = resolve([model_layer("my_model.py:Net(hidden=3)"), model_layer("gcn")])
    assert config.model == Config().model
    assert isinstance(resolve([model_layer("gcn"), model_layer("my_model.py:Net")]).model.build(2, 2), nn.Module)
