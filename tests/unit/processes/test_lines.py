"""What comes through a pipe, line by line."""

import os

from laconic.processes import LineReader


def test_lines_are_whole_however_they_come():
    read_end, write_end = os.pipe()
    lines: list[str] = []
    reader = LineReader(read_end, lines.append)
    os.write(write_end, b"one\ntw")
    assert reader.read()
    assert lines == ["one"]
    os.write(write_end, b"o\n 10 %\r 99 %\r\nbad \xff\nrest")
    assert reader.read()
    os.close(write_end)
    assert not reader.read()
    assert lines == ["one", "two", " 99 %", "bad \ufffd", "rest"]
    os.close(read_end)
