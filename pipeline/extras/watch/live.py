"""The live page: the project's report with curves that grow, on the loopback.

The page is one file and loads nothing from elsewhere. A script in it asks for what is new every two seconds.
Its address has a word that nobody else knows, because other users of the machine reach the loopback too, and
samples are of the project's chats.
"""

import base64
import hashlib
import json
import re
import secrets
import threading
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from pipeline import __version__
from pipeline.core.checks import counts_text
from pipeline.core.errors import QuenchError
from pipeline.extras.watch import files
from pipeline.extras.watch.history import History, Points
from pipeline.extras.watch.watched import Watched
from pipeline.pages.templating import TEMPLATES, fill

LOG_LINES = 12
POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">')
SCRIPT = re.compile(r"'sha256-[\w+/=]+'")
MAIN = "<main>"


class LivePage:
    """A server of the page about a run. With `reads` each request reads what is new of the run."""

    def __init__(self, watched: Watched, *, reads: bool = True) -> None:
        self.watched = watched
        self.reads = reads
        self._reading = threading.Lock()
        word = secrets.token_urlsafe(12)

        class Handler(_Handler):
            page = self
            place = f"/{word}/"

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/{word}/"

    def serve_forever(self) -> None:
        """Serve until `close`, or an exception in this thread."""
        self.server.serve_forever(poll_interval=0.2)

    def serve_aside(self) -> None:
        """Serve in a thread."""
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def close(self) -> None:
        """End the server."""
        self.server.shutdown()
        self.server.server_close()

    def html(self) -> tuple[str, str]:
        """Return the page, and the policy of what it may load: the report with the live section before all
        others, or that section alone if there is no report yet.
        """
        script = (TEMPLATES / "live.js").read_text(encoding="utf-8").strip()
        style = (TEMPLATES / "live.css").read_text(encoding="utf-8")
        allowed = [f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"]
        page = self._report()
        if page is None or MAIN not in page:
            page = fill("live.html.jinja", name=self.watched.source.name, version=__version__)
        allowed += [hash for policy in POLICY.findall(page) for hash in SCRIPT.findall(policy)]
        page = POLICY.sub("", page, count=1)
        for tag, before, after in (
            ("</head>", f"<style>{style}</style>", ""),
            (MAIN, "", fill("live_section.html.jinja")),
            ("</body>", f"<script>{script}</script>", ""),
        ):
            page = page.replace(tag, f"{before}{tag}{after}", 1)
        policy = (
            f"default-src 'none'; style-src 'unsafe-inline'; script-src {' '.join(allowed)}; "
            "connect-src 'self'; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        return page, policy

    def _report(self) -> str | None:
        folder = self.watched.source.folder
        try:
            return (folder / files.PAGE).read_text(encoding="utf-8") if folder else None
        except (OSError, ValueError):
            return None

    def news(self, begun: int, step: int, evaluated: int) -> dict[str, Any]:
        """Return what is new after these steps of the run's beginning `begun`.

        Return all if it began again since.
        """
        trouble = self.watched.source.trouble
        if self.reads:
            with self._reading:
                try:
                    self.watched.read_all()
                except QuenchError as error:
                    trouble = str(error)
        with self.watched.history() as history:
            if history.begun != begun:
                step = evaluated = -1
            return news_of(history, step, evaluated) | {"trouble": trouble}


def news_of(history: History, step: int, evaluated: int) -> dict[str, Any]:
    """Return a run for the page's script.

    It has the points after `step` and the evaluations after `evaluated`.
    """
    curves = []
    for curve in history.curves():
        trained, held_out = history.series(curve)
        curves.append(
            {
                "key": curve.key,
                "title": curve.title,
                "newest": history.newest(curve),
                "trained": _after(trained, step),
                "held_out": _after(held_out, evaluated),
            }
        )
    evaluations = [
        {"step": row.step, "asked": row.asked, "samples": [asdict(sample) for sample in row.samples]}
        for row in history.evaluations
        if row.step > evaluated
    ]
    checks = [
        {
            "name": check.name,
            "verdict": check.verdict,
            "step": check.step,
            "found": check.found,
            "remedy": check.remedy,
        }
        for check in history.checks()
    ]
    return {
        "begun": history.begun,
        "step": history.step,
        "evaluated": history.evaluations[-1].step if history.evaluations else -1,
        "state": history.state,
        "headline": history.headline(),
        "notes": history.notes(),
        "curves": curves,
        "evaluations": evaluations[-3:],
        "checks": checks,
        "counts": counts_text(history.checks()),
        "log": history.last_lines(LOG_LINES),
        "page": history.facts.page and str(history.facts.page),
    }


def _after(points: Points, step: int) -> list[tuple[int, float]]:
    return [pair for pair in zip(points.steps, points.values, strict=True) if pair[0] > step]


class _Handler(BaseHTTPRequestHandler):
    """Answers GET of the page and of the news below `place`, from this machine's own browser alone."""

    page: LivePage
    place: str
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer (called by http.server)."""
        path = urlsplit(self.path)
        # A page elsewhere whose name leads to 127.0.0.1 would have another host.
        host = (self.headers.get("Host") or "").rpartition(":")[0]
        if host not in ("127.0.0.1", "localhost") or not path.path.startswith(self.place):
            self._answer(404, "text/plain", b"not here\n")
        elif path.path == self.place:
            html, policy = self.page.html()
            self._answer(200, "text/html; charset=utf-8", html.encode(), policy)
        elif path.path == f"{self.place}news.json":
            asked = parse_qs(path.query)
            try:
                begun, step, evaluated = (int(asked[key][0]) for key in ("begun", "step", "evaluated"))
            except (KeyError, ValueError):
                self._answer(400, "text/plain", b"begun, step and evaluated are numbers\n")
                return
            body = json.dumps(self.page.news(begun, step, evaluated), ensure_ascii=False, allow_nan=False)
            self._answer(200, "application/json", body.encode("utf-8", errors="replace"))
        else:
            self._answer(404, "text/plain", b"not here\n")

    def _answer(self, code: int, kind: str, body: bytes, policy: str = "default-src 'none'") -> None:
        self.send_response(code)
        for name, value in {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "Content-Security-Policy": policy,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
        }.items():
            self.send_header(name, value)
        self.end_headers()
        try:
            self.wfile.write(body)
        except OSError:
            self.close_connection = True  # The browser is gone.

    def log_message(self, format: str, *arguments: Any) -> None:
        """Print nothing: a request every two seconds is no news."""
