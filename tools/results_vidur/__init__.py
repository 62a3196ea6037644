"""The paper's experiments, inside Vidur: makes the tables of docs/vidur.md (`make results-vidur`)."""
