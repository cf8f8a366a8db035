"""Reports: what one consists of (`document`), its pictures (`pictures`), and its page (`page`)."""
