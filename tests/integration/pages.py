"""What tests of pages in a browser have in common."""

LONG = "a_very_long_name_without_any_place_to_break_it_" * 3


def drawn(shown, name):
    """Scrolls to a figure and waits until it is drawn."""
    shown.locator(f"[id='{name}']").scroll_into_view_if_needed()
    shown.wait_for_selector(f"[id='{name}'] .main-svg")
    return shown.locator(f"[id='{name}']")


def fits(shown):
    return shown.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def names(chart):
    """The names of the curves that are shown."""
    return chart.locator(".plot").evaluate("plot => plot.data.map(trace => trace.name).filter(Boolean)")
