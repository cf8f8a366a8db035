"""The report on the paper: `contents` puts it together, from the claims and a section for each experiment."""
