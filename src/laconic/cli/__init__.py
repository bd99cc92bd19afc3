"""The command `laconic`: one file per verb, put together in main.py."""
