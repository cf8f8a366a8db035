"""Small models to try the advisor on: the tasks of ``matrix-adagrad advise --demo``, and a GPT."""
