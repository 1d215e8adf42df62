"""Views of the command line: tables, plain values and reports."""
