"""The text of benchmarks/library_text.py: no passage comes twice, and whole files are held out."""

from collections import Counter

import pytest
import torch

from benchmarks.library_text import batches, numbered, split


def test_no_token_is_predicted_twice():
    taken = list(batches(torch.arange(1000), seed=0, steps=9, batch=5, context=20))
    assert [batch.shape for batch in taken] == [(5, 21)] * 9
    assert all(torch.equal(batch, batch[:, :1] + torch.arange(21)) for batch in taken)  # pieces of the text
    assert max(Counter(torch.cat(taken)[:, 1:].flatten().tolist()).values()) == 1


def test_a_seed_has_an_order_of_its_own():
    first, again, other = (
        torch.cat(list(batches(torch.arange(1000), seed, steps=9, batch=5, context=20))) for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_text_that_is_too_short_is_refused():
    with pytest.raises(SystemExit, match="has 45 windows of 20 words to train on, and 10 steps .* take 50"):
        next(batches(torch.arange(901 + 19), seed=0, steps=10, batch=5, context=20))


def test_whole_files_are_held_out():
    files = [f"file {number}" for number in range(95)]
    training, held_out = split(files)
    assert sorted(training + held_out) == sorted(files)
    assert len(held_out) == 10
    assert (training, held_out) == split(files)


def test_words_are_counted_in_the_training_files_alone():
    training, held_out, vocabulary = numbered(["one one\n    one two"], ["two two two"], frequent=3)
    assert training.tolist()[0] != training.tolist()[1]  # "one" and " one"
    assert vocabulary == len({*training.tolist(), *held_out.tolist()})
    assert len(training) == 4 + len(" two")
    assert len(held_out) == len("two two two")
