import pickle
from pathlib import Path

import pytest
import torch

from laconic.datasets import load, save_npz
from laconic.datasets.sbm import Sbm
from laconic.errors import ConfigError, DataError
from laconic.graph import Graph


@pytest.fixture
def data_folder(tmp_path: Path, small_graph: Graph, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two folders on LACONIC_DATA, the first of which is returned and holds cora.npz."""
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
    save_npz(small_graph, tmp_path / "first" / "cora.npz")
    monkeypatch.setenv("LACONIC_DATA", f"{tmp_path / 'first'}:{tmp_path / 'absent'}:{tmp_path / 'second'}")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "first"


def write_tables(folder: Path) -> None:
    folder.mkdir()
    (folder / "edges.csv").write_text("0,1\n1,2\n")
    (folder / "features.csv").write_text("1,2\n" * 4)
    (folder / "labels.csv").write_text("0\n1\n0\n1\n")


def test_a_spec_and_options_mean_the_same() -> None:
    built = Sbm(nodes=60, degree=6.0, seed=3).build()
    assert torch.equal(load("sbm(nodes=60, degree=6, seed=3)").x, built.x)
    assert torch.equal(load("sbm(nodes=60)", degree=6, seed=3).x, built.x)


def test_a_generator_takes_dtype_and_normalisation_too() -> None:
    graph = load("sbm(nodes=60, dtype='float64')", normalise_features="row")
    assert graph.x.dtype == torch.float64
    assert torch.allclose(graph.x.abs().sum(dim=1), torch.ones(60, dtype=torch.float64))


def test_a_name_is_found_on_the_search_path(data_folder: Path, small_graph: Graph) -> None:
    assert torch.equal(load("cora").x, small_graph.x)


def test_the_first_folder_of_the_search_path_wins(data_folder: Path, small_graph: Graph) -> None:
    save_npz(load("sbm(nodes=60)"), data_folder.parent / "second" / "cora.npz")
    assert torch.equal(load("cora").x, small_graph.x)


def test_a_name_with_a_hyphen_finds_a_folder_with_an_underscore(data_folder: Path) -> None:
    write_tables(data_folder.parent / "second" / "ogbn_small")
    assert load("ogbn-small").num_nodes == 4


def test_a_name_and_a_path_take_the_options_of_their_loader(data_folder: Path) -> None:
    assert load("cora(dtype='float64')").x.dtype == torch.float64
    write_tables(data_folder / "papers")
    assert load(f"{data_folder / 'papers'}(add_reverse_edges=True)").num_edges == 4
    assert load(data_folder / "papers", add_reverse_edges=False).num_edges == 2


def test_a_path_that_exists_is_taken_before_a_name_of_the_search_path(data_folder: Path) -> None:
    write_tables(Path("cora"))
    assert load("cora").num_nodes == 4


def test_a_path_with_brackets_in_it_is_a_path(data_folder: Path, small_graph: Graph) -> None:
    save_npz(small_graph, data_folder / "cora (1).npz")
    assert load(data_folder / "cora (1).npz").num_nodes == 60


def test_two_datasets_of_one_name_in_one_folder_are_told(data_folder: Path) -> None:
    write_tables(data_folder / "cora")
    with pytest.raises(DataError, match=r"holds both cora\.npz and cora"):
        load("cora")


def test_an_unknown_name_lists_the_choices_and_suggests_the_nearest(data_folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"'corra'\. Choices: cora, grid, rmat, sbm\. Did you mean 'cora'\?"):
        load("corra")
    with pytest.raises(ConfigError, match=r"Did you mean 'sbm'\?"):
        load("sbmm(nodes=5)")


def test_an_unknown_option_lists_the_choices_and_suggests_the_nearest(data_folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"load_npz option 'spilt'.*Did you mean 'split'\?"):
        load("cora(spilt=1)")
    with pytest.raises(ConfigError, match=r"dataset sbm argument 'node'.*Did you mean 'nodes'\?"):
        load("sbm(node=1)")


def test_a_file_name_is_looked_for_in_the_current_folder_and_then_on_the_search_path(
    data_folder: Path, small_graph: Graph
) -> None:
    assert torch.equal(load("cora.npz").x, small_graph.x)
    assert load("cora.npz(dtype='float64')").x.dtype == torch.float64
    save_npz(load("sbm(nodes=70)"), Path("cora.npz"))
    assert load("cora.npz").num_nodes == 70


def test_a_file_name_means_that_file(data_folder: Path, small_graph: Graph) -> None:
    save_npz(small_graph, data_folder / "a-b.npz")
    save_npz(load("sbm(nodes=70)"), data_folder / "a_b.npz")
    write_tables(data_folder / "cora")
    assert load("a-b.npz").num_nodes == 60
    assert load("cora.npz").num_nodes == 60


def test_a_file_name_that_is_nowhere_says_where_it_was_looked_for(data_folder: Path) -> None:
    with pytest.raises(DataError, match=rf"absent\.npz: there is no such .*LACONIC_DATA \({data_folder}, "):
        load("absent.npz")
    with pytest.raises(DataError, match=r"absent\.npz: there is no such file or folder\.$"):
        load("./folder/absent.npz")


def test_a_text_too_long_for_a_name_is_an_unknown_name_and_is_cut_short(data_folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"Unknown dataset 'x{60}\.\.\.'\. Choices: cora"):
        load("x" * 5000)
    with pytest.raises(ConfigError, match=r"Unknown dataset 'x{60}\.\.\.'\."):
        load("x" * 5000 + "(split=1)")
    for path in ("x" * 5000 + ".npz", "x/" * 5000):
        with pytest.raises(DataError, match="there is no such file or folder") as error:
            load(path)
        assert len(str(error.value)) < 1000


@pytest.mark.parametrize("source", ["absent.npz", "absent/folder", "./absent"])
def test_an_absent_path_is_named(source: str) -> None:
    with pytest.raises(DataError, match=r"absent.*there is no such file or folder"):
        load(source)


@pytest.mark.parametrize("text", ["sbm(nodes=)", "sbm(5)", "cora(split=1, split=2)", "sbm(nodes=open('x'))"])
def test_a_malformed_spec_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        load(text)


class Marker:
    """Its pickle would run code: touching a file when read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (self.path,)  # type: ignore[return-value]


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".pkl", ".pickle", ".npz", ".npy"])
def test_nothing_pickled_is_ever_read(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"evil{suffix}"
    path.write_bytes(pickle.dumps(Marker(tmp_path / "ran")))
    with pytest.raises(DataError, match=r"evil"):
        load(path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(("suffix", "reader"), [(".pt", "torch.load("), (".pkl", "pickle.load(")])
def test_a_pickled_file_is_refused_with_lines_that_convert_it(tmp_path: Path, suffix: str, reader: str) -> None:
    with pytest.raises(DataError) as caught:
        load(tmp_path / f"old{suffix}")
    assert reader in str(caught.value)
    assert f"datasets.save_npz(graph, '{tmp_path / 'old.npz'}')" in str(caught.value)


def test_a_file_of_another_kind_is_told_what_a_graph_is(tmp_path: Path) -> None:
    (tmp_path / "edges.csv").write_text("0,1\n")
    with pytest.raises(DataError, match=r"edges\.csv is no graph: that is an \.npz file"):
        load(tmp_path / "edges.csv")


@pytest.mark.parametrize("source", ["cora", "first/cora.npz", "tables", "tables(seed=3)"])
def test_every_source_can_be_made_undirected(data_folder: Path, source: str) -> None:
    write_tables(Path("tables"))
    plain, both = load(source), load(source, undirected=True)
    edges = set(map(tuple, plain.edge_index.T.tolist()))
    assert set(map(tuple, both.edge_index.T.tolist())) == edges | {(end, begin) for begin, end in edges}
    option = source.replace(")", ", add_reverse_edges=true)") if "(" in source else f"{source}(add_reverse_edges=true)"
    assert torch.equal(load(option).edge_index, both.edge_index)
    assert torch.equal(load(option.replace("true", "false")).edge_index, plain.edge_index)


def test_a_generator_is_undirected_already() -> None:
    assert torch.equal(load("sbm(nodes=60)", undirected=True).edge_index, load("sbm(nodes=60)").edge_index)


def test_a_graph_to_predict_for_may_say_itself_that_no_edge_is_added(data_folder: Path) -> None:
    write_tables(Path("tables"))
    plain = load("tables", labelled=False)
    own = load("tables(add_reverse_edges=False)", labelled=False, undirected=True)
    assert torch.equal(own.edge_index, plain.edge_index)
    assert load("tables", labelled=False, undirected=True).num_edges == 2 * plain.num_edges


def test_undirected_and_its_opposite_are_refused_together(data_folder: Path) -> None:
    with pytest.raises(ConfigError, match="add_reverse_edges is False, but the graph is to be undirected"):
        load("cora(add_reverse_edges=false)", undirected=True)
    with pytest.raises(ConfigError, match="add_reverse_edges should be True or False; got 'maybe'"):
        load("cora(add_reverse_edges=maybe)")
    with pytest.raises(ConfigError, match="dtype should be such as 'float32'; got True"):
        load("cora(dtype=true)")
