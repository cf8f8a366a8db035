"""Colours that are told apart, the same in all figures."""

import dataclasses

from matrix_adagrad.pages import palette
from tests.pages.documents import document, figure, line


def luminance(colour):
    channels = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(colour, other):
    low, high = sorted((luminance(colour), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_colours_stand_out_from_their_background():
    for light, dark, *_ in palette.COLOURS:
        assert contrast(light, palette.LIGHT.paper) >= 3
        assert contrast(dark, palette.DARK.paper) >= 3
    for theme in (palette.LIGHT, palette.DARK):
        for colour in (theme.ink, theme.muted, theme.alert):
            assert contrast(colour, theme.paper) >= 4.5


def test_a_name_has_one_style_in_all_figures_and_no_two_names_share_one():
    first, second = figure("one", lines=[line("a"), line("b")]), figure("two", lines=[line("b"), line("c")])
    styles = palette.styles_of_document(document((first, second), leading=()))
    assert list(styles) == ["a", "b", "c"]
    many = palette.styles(str(i) for i in range(25))
    assert len({dataclasses.astuple(style) for style in many.values()}) == 25
    assert len({style.marker for style in list(many.values())[:8]}) == 8
