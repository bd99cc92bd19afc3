"""What columns are taken for, by name; no file is read here."""

import re

import pytest

from laconic.datasets._columns import ColumnMapping
from laconic.errors import ConfigError, DataError

PLAIN = ColumnMapping(given_as="data/papers")


@pytest.mark.parametrize(
    "names",
    [
        ["target", "source"],
        ["dst", "src"],
        ["to", "from"],
        ["v", "u"],
        ["TargetID", "SourceID"],
        ["Destination", "Source"],
        [" target ", " source "],
        ["id_2", "id_1"],
        ["ToNodeId", "FromNodeId"],
        [":END_ID", ":START_ID"],
    ],
)
def test_ends_of_edges_are_known_by_name_in_any_order_and_case(names: list[str]) -> None:
    roles = PLAIN.assign("edges", names, where="edges.csv")
    assert roles.of == {"source": names[1], "target": names[0]}
    assert list(roles.of) == ["source", "target"]
    assert roles.describe().endswith("no weight")


@pytest.mark.parametrize("name", ["weight", "edge_weight", "Edge Weight", "W"])
def test_a_weight_is_known_by_name(name: str) -> None:
    assert PLAIN.assign("edges", [name, "v", "u"], where="e").of == {"source": "u", "target": "v", "weight": name}


@pytest.mark.parametrize("name", ["node", "id", "node_id", "nodeId", "Node ID", "NODEID"])
@pytest.mark.parametrize("kind", ["features", "labels", "split", "nodes"])
def test_ids_are_known_by_name_in_every_table_of_nodes(kind: str, name: str) -> None:
    others = {"features": ["a", "b"], "labels": ["label"], "split": ["split"], "nodes": []}[kind]
    roles = PLAIN.assign(kind, [*others, name], where=kind)  # type: ignore[arg-type]
    assert roles.of["node"] == name
    assert roles.id_columns == [name]
    assert roles.many == (("a", "b") if kind == "features" else ())


REFUSED = {
    "a timestamp": ("edges", ["source", "target", "timestamp"], "'timestamp' is unknown", "ignore=timestamp"),
    "an id of edges": ("edges", ["edge_id", "source", "target"], "'edge_id' is unknown", "ignore=edge_id"),
    "other names": ("edges", ["citing", "cited"], "the source or the target", "source=citing, target=cited"),
    "one other name": ("edges", ["source", "cited", "year"], "as the target", "target=cited, ignore=year"),
    "head and tail": ("edges", ["head", "tail"], "no column is known as", "source=head, target=tail"),
    "row numbers": ("edges", ["", "source", "target"], "row numbers, as pandas writes them", "ignore="),
    "row numbers again": ("features", ["Unnamed: 0", "id", "a"], "row numbers", "ignore=Unnamed: 0"),
    "an id of its own": ("features", ["user_id", "a"], "'user_id' may be no feature", "node=user_id"),
    "an id in camel case": ("features", ["userId", "a"], "may be no feature", "node=userId"),
    "an id beside the id": ("features", ["id", "city_id"], "may be no feature", "ignore=city_id"),
    "a label, or a place": ("features", ["id", "x", "y"], "'y' may be no feature", "ignore=y"),
    "two things of a node": ("labels", ["id", "label", "name"], "'name' is unknown", "ignore=name"),
    "labels of an unknown id": ("labels", ["user_id", "venue"], "'user_id' is unknown", "node=user_id"),
    "two names for the ids": ("features", ["id", "node_id", "f"], "name the node", "node=id, ignore=node_id"),
    "two names for the label": ("labels", ["id", "label", "class"], "name the label", "label=label, ignore=class"),
    "two splits": ("split", ["id", "first", "second"], "no column is known as the split", "split=first, ignore=second"),
}


@pytest.mark.parametrize(("kind", "names", "said", "line"), REFUSED.values(), ids=REFUSED.keys())
def test_an_unknown_name_is_refused_with_a_line_that_mends_it(
    kind: str, names: list[str], said: str, line: str
) -> None:
    with pytest.raises(DataError, match=rf"(?s)^my\.csv: .*{said}") as refused:
        PLAIN.assign(kind, names, where="my.csv")  # type: ignore[arg-type]
    copied = re.search(r"\n  \"data/papers\(columns='(.*)'\)\"", str(refused.value))
    assert copied is not None
    assert copied[1] == line
    mended = ColumnMapping.parse(copied[1], given_as="data/papers")
    mended.assign(kind, names, where="my.csv")  # type: ignore[arg-type]
    mended.check_used()


def test_features_and_several_labels_may_have_any_name() -> None:
    assert PLAIN.assign("features", ["humidity", "grid", "Valid"], where="f").many == ("humidity", "grid", "Valid")
    assert PLAIN.assign("labels", ["id", "red", "blue"], where="l").many == ("red", "blue")
    assert PLAIN.assign("labels", ["id", "venue_id"], where="l").of == {"node": "id", "label": "venue_id"}


def test_features_may_hold_the_label_and_the_split() -> None:
    roles = PLAIN.assign("features", ["id", "age", "label", "split"], where="f")
    assert roles.of == {"node": "id", "label": "label", "split": "split"}
    assert roles.describe() == "node <- id, label <- label, split <- split, 1 feature <- age"


def test_without_a_header_edges_are_source_target_weight_and_no_more() -> None:
    def of(number: int) -> object:
        names = [str(place) for place in range(number)]
        return PLAIN.assign("edges", names, where="e", has_header=False).of

    assert of(2) == {"source": "0", "target": "1"}
    assert of(3) == {"source": "0", "target": "1", "weight": "2"}
    with pytest.raises(DataError, match=r"no header line, and 4 columns(?s:.*)columns='ignore=3'"):
        of(4)
    swapped = ColumnMapping.parse("source=1, target=0, ignore=2", given_as="d")
    names = ["0", "1", "2"]
    assert swapped.assign("edges", names, where="e", has_header=False).of == {"source": "1", "target": "0"}


def test_two_names_for_one_role_are_refused_until_the_user_says_which() -> None:
    with pytest.raises(DataError, match=r"both 'source' and 'src' name the source(?s:.*)source=source, ignore=src"):
        PLAIN.assign("edges", ["source", "src", "target"], where="e")
    mapping = ColumnMapping.parse("source=src, ignore=source", given_as="d")
    assert mapping.assign("edges", ["source", "src", "target"], where="e").of == {"source": "src", "target": "target"}


def test_what_the_user_says_wins_over_the_name_and_may_say_the_table() -> None:
    mapping = ColumnMapping.parse("feature=y, ignore=features.label", given_as="d")
    assert mapping.assign("features", ["id", "y", "label"], where="f").many == ("y",)
    assert mapping.assign("labels", ["id", "label"], where="l").of == {"node": "id", "label": "label"}
    one_of_two = ColumnMapping.parse("label=kind, ignore=name", given_as="d")
    assert one_of_two.assign("labels", ["id", "name", "kind"], where="l").of == {"node": "id", "label": "kind"}


def test_ignoring_a_column_of_edges_leaves_the_ids_of_nodes_alone() -> None:
    mapping = ColumnMapping.parse("ignore=id, ignore=label", given_as="d")
    assert mapping.assign("edges", ["id", "u", "v", "label"], where="e").of == {"source": "u", "target": "v"}
    assert mapping.assign("labels", ["id", "label"], where="l").of == {"node": "id", "label": "label"}
    assert mapping.assign("features", ["id", "a"], where="f").of == {"node": "id"}
    unweighted = ColumnMapping.parse("ignore=weight", given_as="d")
    assert unweighted.assign("edges", ["u", "v", "weight"], where="e").of == {"source": "u", "target": "v"}


def test_ids_are_ignored_only_in_the_table_that_has_others() -> None:
    mapping = ColumnMapping.parse("node=node_id, ignore=id", given_as="d")
    assert mapping.assign("features", ["id", "node_id", "f"], where="f").of == {"node": "node_id"}
    assert mapping.assign("labels", ["id", "label"], where="l").of == {"node": "id", "label": "label"}


def test_a_line_to_copy_says_each_column_once() -> None:
    twice = ColumnMapping.parse("node=id, node=node_id", given_as="d")
    with pytest.raises(DataError, match=r"both 'id' and 'node_id' name the node(?s:.*)'node=id, ignore=node_id'"):
        twice.assign("features", ["id", "node_id", "f"], where="f")


def test_a_column_given_with_its_table_wins_over_one_without() -> None:
    mapping = ColumnMapping.parse("label=kind, ignore=features.kind", given_as="d")
    assert mapping.assign("features", ["id", "kind", "f"], where="f").of == {"node": "id"}
    assert mapping.assign("labels", ["id", "kind"], where="l").of == {"node": "id", "label": "kind"}


def test_a_mapping_that_cannot_be_meant_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Unknown role of a column 'sauce'.*Did you mean 'source'"):
        ColumnMapping.parse("sauce=src", given_as="d")
    with pytest.raises(ConfigError, match=r"pairs role=column.*got 'source'"):
        ColumnMapping.parse("source", given_as="d")
    mapping = ColumnMapping.parse("ignore=tmestamp", given_as="d")
    mapping.assign("features", ["id", "timestamps"], where="f")
    with pytest.raises(ConfigError, match=r"ignore=tmestamp: Unknown column 'tmestamp'.*Did you mean 'timestamps'"):
        mapping.check_used()
