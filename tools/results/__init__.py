"""`make results`: every table and figure of docs/results.md, from the commands that it names."""
