"""Games, and learners for them, that the tests of the meter share."""

from matrix_adagrad import Blocks, Factored, Full
from matrix_adagrad.domains import Box, FrobeniusBall, RowBalls, RowSimplex
from matrix_adagrad.online import (
    AdaGrad,
    Adversarial,
    Completion,
    EntryStream,
    ExampleStream,
    Hinge,
    Linear,
    MirrorDescent,
    Motivating,
)
from tests.domains.table import draw

GAMES = {
    "motivating": Motivating(6, 4),
    "linear": Linear(6, 4, RowBalls(1.0)),
    "adversarial": Adversarial(6, 4, FrobeniusBall(1.0)),
    "hinge": Hinge(ExampleStream.random(6, 4, 40), Box(-1.0, 1.0)),
    "completion": Completion(EntryStream.random(6, 4, 40), 6, 4, RowSimplex()),
}
SCHEMES = {
    "row": lambda: "row",
    "column": lambda: "column",
    "entry": lambda: "entry",
    "whole": lambda: "whole",
    "blocks": lambda: Blocks(rows=2),
    "full rows": lambda: AdaGrad(Full("row"), 1e-3),
    "full columns": lambda: AdaGrad(Full("column"), 1e-3),
    "full smaller": lambda: AdaGrad(Full("smaller"), 1e-3),
    "geometric": lambda: Factored("geometric"),
    "minimum": lambda: Factored("minimum"),
    "product": lambda: Factored(),
}


def learner(game, scheme="row", **options):
    x1 = game.domain.project(0.1 * draw(1, game.shape))
    return MirrorDescent(x1, SCHEMES[scheme](), game.domain, **options)
