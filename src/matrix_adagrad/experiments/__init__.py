"""The paper's experiments: each module has a typed config and a pure ``run(config)``."""
