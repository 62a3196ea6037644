"""Reports: terminal tables, data files and the HTML page. They read experiments, and never import the command line."""

from bidroute.report.data_files import comparison_data, write_json, write_per_request_csv
from bidroute.report.explanations import explanation_data, explanation_sentence, explanation_table
from bidroute.report.files import check_writable
from bidroute.report.html import write_html
from bidroute.report.sentences import losses_sentence, scenario_sentence, verdict_sentence
from bidroute.report.tables import comparison_table

__all__ = [
    "check_writable",
    "comparison_data",
    "comparison_table",
    "explanation_data",
    "explanation_sentence",
    "explanation_table",
    "losses_sentence",
    "scenario_sentence",
    "verdict_sentence",
    "write_html",
    "write_json",
    "write_per_request_csv",
]
