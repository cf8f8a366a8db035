"""What tests of pages in a browser have in common."""

LONG = "a_very_long_name_without_any_place_to_break_it_" * 3


def drawn(shown, name):
    """Scrolls to a figure and waits until it is drawn."""
    shown.locator(f"[id='{name}']").scroll_into_view_if_needed()
    shown.wait_for_selector(f"[id='{name}'] .main-svg")
    return shown.locator(f"[id='{name}']")


def fits(shown):
    return shown.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def broken_words(shown, selector):
    """Words whose letters are not all on one line."""
    return shown.locator(selector).evaluate_all("""elements => elements.flatMap(element => {
        const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT), broken = [];
        for (let node; node = walker.nextNode();)
            for (const word of node.textContent.matchAll(/[\\p{L}\\p{N}]+/gu)) {
                const range = document.createRange();
                range.setStart(node, word.index);
                range.setEnd(node, word.index + word[0].length);
                if (new Set([...range.getClientRects()].map(box => Math.round(box.top))).size > 1) broken.push(word[0]);
            }
        return broken;
    })""")


def names(chart):
    """The names of the curves that are shown."""
    return chart.locator(".plot").evaluate("plot => plot.data.map(trace => trace.name).filter(Boolean)")
