"""The report: what it consists of (`document`), its pictures (`pictures`), and its page (`page`)."""
