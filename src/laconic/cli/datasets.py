"""The verb `datasets`: which graphs can be named, built in or in the folders of LACONIC_DATA."""


def datasets() -> None:
    """Lists."""
