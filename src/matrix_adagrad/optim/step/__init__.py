"""How a step is run: a configuration, a record per tensor, a plan, and the backends that carry it out."""
