"""The report on the paper: its claims and numbers (`contents`), and a section for each experiment."""
