"""The run in a terminal: curves, checks, sample answers and the log, by Textual."""

import asyncio
import math
import time
import webbrowser
from collections.abc import Callable, Mapping
from itertools import groupby
from operator import itemgetter
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Grid, VerticalScroll
from textual.events import Resize
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Footer, Static, TabbedContent, TabPane

from pipeline.core.checks import Check
from pipeline.core.errors import QuenchError
from pipeline.extras.watch.draw import drawn
from pipeline.extras.watch.history import LINES, Curve, Evaluation, History
from pipeline.extras.watch.live import LivePage
from pipeline.extras.watch.watched import STOP, Watched
from pipeline.stages.train.requests import CHECKPOINT, EVALUATION

LOOK_SECONDS = 1.0
# share of a core that drawing may take: the training needs the rest
SHARE = 0.01
WIDE = 120  # columns from which three curves are beside each other
TABS = ("curves", "checks", "answers", "log")
LEAST = 5  # lines of a curve
SCALE = 9  # columns of a curve's scale
SHOWN = 6  # last evaluations whose answers are shown
MARKS = {"pass": "✓", "warn": "!", "fail": "✗", "not measured": "○"}
STYLES = {"pass": "green", "warn": "yellow", "fail": "bold red", "not measured": "dim"}


class Plot(Static):
    """One curve with its newest value and its scale."""

    def __init__(self, curve: Curve, app: "WatchApp") -> None:
        super().__init__(classes="plot")
        self.curve = curve
        self.of = app

    def on_resize(self, event: Resize) -> None:
        """Draw again for the new size."""
        self.draw()

    def draw(self) -> None:
        """Draw what is known of the curve."""
        width = self.content_size.width
        height = self.content_size.height - 1
        with self.of.watched.history() as history:
            trained, held_out = history.series(self.curve)
            title = f"{self.curve.title} "
            newest = history.newest(self.curve)
            cells, low, high = drawn([trained, held_out], width - SCALE, height)
        text = Text(no_wrap=True, overflow="crop")
        text.append(title, "bold")
        text.append(newest)
        has_values = bool(trained.values or held_out.values)
        for number, line in enumerate(cells):
            scale = ""
            if has_values and number in (0, height - 1):
                scale = self.curve.text(high if number == 0 else low)
            text.append("\n" + f"{scale[: SCALE - 1]:>{SCALE - 1}} ", "dim")
            for series, run in groupby(line, itemgetter(1)):
                text.append("".join(chr(code) for code, _ in run), "yellow" if series else "cyan")
        self.update(text, layout=False)


class Confirm(ModalScreen[bool]):
    """Asks whether the training is to stop."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Stop it"),
        Binding("n,escape,q", "answer(False)", "Let it run"),
    ]

    def compose(self) -> ComposeResult:
        """Return the question."""
        yield Static(
            "Stop the training with a checkpoint? The same command resumes it.\n\n"
            "y  stop it    n  let it run",
            id="question",
        )

    def action_answer(self, yes: bool) -> None:
        """Close with the answer."""
        self.dismiss(yes)


class WatchApp(App[int]):
    """The screen of `quench watch`."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #head { height: auto; max-height: 4; padding: 0 1; text-wrap: nowrap; text-overflow: ellipsis; }
    Screen { overflow: hidden; }
    TabbedContent, ContentSwitcher, TabPane { height: 1fr; }
    #grid { grid-size: 2; grid-rows: 1fr; height: 100%; grid-gutter: 0 1; }
    .wide #grid { grid-size: 3; }
    .plot { height: 100%; }
    TabPane { padding: 0 1; }
    Confirm { align: center middle; }
    #question { width: auto; max-width: 90%; height: auto; border: round $warning; padding: 1 2; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("c", f"ask('{CHECKPOINT}')", "Checkpoint now"),
        Binding("e", f"ask('{EVALUATION}')", "Evaluate now"),
        Binding("s", "stop", "Stop cleanly"),
        Binding("o", "page", "Open page"),
        Binding("q", "quit", "Detach"),
        *(Binding(str(number), f"tab('{name}')", show=False) for number, name in enumerate(TABS, start=1)),
    ]

    def __init__(self, watched: Watched) -> None:
        super().__init__()
        self.watched = watched
        self.page: LivePage | None = None
        # what is on the screen: the history's version, the source's trouble, the tab
        self.shown = (-1, "", "")
        self.drawn = 0.0  # when that was drawn, and the CPU time until then, both in seconds
        self.used = 0.0
        self.reading = False

    def compose(self) -> ComposeResult:
        """Return the head, the four tabs and the keys."""
        yield Static(id="head", markup=False)
        with TabbedContent(initial=TABS[0]):
            with TabPane("1 Curves", id="curves"), VerticalScroll():
                yield Grid(id="grid")
            for number, name in enumerate(TABS[1:], start=2):
                with TabPane(f"{number} {name.capitalize()}", id=name), VerticalScroll():
                    yield Static(id=f"{name}-text", markup=False)
        yield Footer()

    async def on_mount(self) -> None:
        """Begin to look."""
        self.title = self.watched.source.name
        self._fit(self.size.width)
        await self._show()
        self.set_interval(LOOK_SECONDS, self.look)

    def on_resize(self, event: Resize) -> None:
        """Put as many curves beside each other as the width takes."""
        self._fit(event.size.width)

    def _fit(self, width: int) -> None:
        self.set_class(width >= WIDE, "wide")
        beside = 3 if width >= WIDE else 2
        rows = math.ceil(len(self.query(Plot)) / beside)
        self.query_one("#grid", Grid).styles.min_height = rows * LEAST  # Lower ones are scrolled to.

    async def look(self) -> None:
        """Read what is new and show it."""
        if self.reading:
            return
        self.reading = True
        try:
            for _ in self.watched.read():
                await asyncio.sleep(0)
        except QuenchError as error:
            self.exit(error.exit_code, message=f"quench: {error}")
            return
        finally:
            self.reading = False
        used = time.process_time() - self.used
        if used <= SHARE * (time.monotonic() - self.drawn):
            await self._show()

    async def _show(self) -> None:
        with self.watched.history() as history:
            shown = (history.version, self.watched.source.trouble, self.query_one(TabbedContent).active)
            if shown == self.shown:
                return
            self.shown = shown
            self.drawn = time.monotonic()
            self.used = time.process_time()
            head = _head(self.watched, history)
            curves = history.curves()
            active = self.query_one(TabbedContent).active
            text = TEXTS[active](history) if active in TEXTS else None
        self.query_one("#head", Static).update(head)
        if text is None:
            await self._plots(curves)
        else:
            self.query_one(f"#{active}-text", Static).update(text)

    async def _plots(self, curves: list[Curve]) -> None:
        """Draw all curves; the widgets are made again if there are others than before."""
        grid = self.query_one("#grid", Grid)
        plots = list(self.query(Plot))
        if [plot.curve for plot in plots] != curves:
            await grid.remove_children()
            await grid.mount(*(Plot(curve, self) for curve in curves))
            self._fit(self.size.width)
            return  # Each is drawn when it gets its size.
        for plot in plots:
            plot.draw()

    # --- keys -----------------------------------------------------------------------------------------------

    async def on_tabbed_content_tab_activated(self) -> None:
        """Fill the tab, which was not kept up to date while another one was shown."""
        await self._show()

    async def action_tab(self, name: str) -> None:
        """Show a tab."""
        self.query_one(TabbedContent).active = name
        await self._show()
        pane: Widget = self.query_one(f"#{name}")
        for scroll in pane.query(VerticalScroll):
            scroll.focus()
            if name == "log":
                scroll.scroll_end(animate=False)

    async def action_ask(self, request: str) -> None:
        """Ask the training, and say what comes of it."""
        said = await asyncio.to_thread(self.watched.ask, request)
        self.notify(said, markup=False)

    def action_stop(self) -> None:
        """Stop the training if that is confirmed."""

        async def answered(yes: bool | None) -> None:
            if yes:
                await self.action_ask(STOP)

        self.push_screen(Confirm(), answered)

    def action_page(self) -> None:
        """Open the live page in the browser."""
        if self.page is None:
            self.page = LivePage(self.watched, reads=False)
            self.page.serve_aside()
        self.notify(self.page.url, title="The live page, as long as this watches", markup=False, timeout=15)
        webbrowser.open(self.page.url)

    async def action_quit(self) -> None:
        """Leave; the training does not notice."""
        self.exit(0)

    def on_unmount(self) -> None:
        """End the page's server."""
        if self.page:
            self.page.close()


def _head(watched: Watched, history: History) -> Text:
    text = Text(watched.source.name, "dim", no_wrap=True, overflow="ellipsis")
    text.append("\n" + history.headline(), "not dim bold")
    gravest = [check for check in history.events if check.verdict == "fail"] or history.events
    lines = [watched.source.trouble, *history.notes()]
    if gravest:
        newest = gravest[-1]
        lines.append(f"{newest.verdict}: {newest.name}: {newest.found}")
    for line in [line for line in lines if line][:2]:
        text.append("\n" + line, "not dim yellow")
    return text


def _checks(history: History) -> Text:
    text = Text()
    for note in history.notes():
        text.append(f"{note}\n", "yellow")
    for check in history.checks():
        text.append_text(_check(check))
    return text if text else Text("no step is judged yet")


def _check(check: Check) -> Text:
    at = f" (step {check.step})" if check.step is not None else ""
    text = Text(f"{MARKS[check.verdict]} {check.verdict} ", STYLES[check.verdict])
    text.append(f"{check.name}{at}: ", "not dim bold")
    text.append(f"{check.found}\n")
    if check.remedy:
        text.append(f"  → {check.remedy}\n")
    return text


def _answers(history: History) -> Text:
    text = Text()
    for row in list(history.evaluations)[: -SHOWN - 1 : -1]:
        text.append_text(_evaluation(row))
    return text if text else Text("no evaluation yet")


def _evaluation(row: Evaluation) -> Text:
    asked = ", asked for" if row.asked else ""
    text = Text(f"Step {row.step}{asked}: loss on the held-out rows {row.loss:.3g}\n", "bold")
    for sample in row.samples:
        for title, words, style in (
            ("asked", sample.prompt, "dim"),
            ("expected", sample.reference, "green"),
            ("answered", sample.answer, "cyan"),
        ):
            text.append(f"  {title:<9}", "not bold dim")
            text.append(f"{words.strip()}\n", f"not bold {style}")
        text.append("\n")
    return text


def _log(history: History) -> Text:
    return Text("\n".join(history.last_lines(LINES)))


TEXTS: Mapping[str, Callable[[History], Text]] = {"checks": _checks, "answers": _answers, "log": _log}
