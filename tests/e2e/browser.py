"""browser.py PAGE WIDTH SCREENSHOT: what a real Chromium (Qt WebEngine, offscreen) makes of a page, as JSON.

{"loaded", "console": [messages], "scroll_width", "client_width", "dead_links": [#id without a target]}
Needs a Python with PyQt6-WebEngine; tests/e2e/report_test.py finds it by PATCHBENCH_BROWSER_PYTHON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
# The page is our own and has no scripts; as root Chromium starts no sandbox.
os.environ.setdefault("QTWEBENGINE_CHROMIUM_FLAGS", "--no-sandbox --disable-gpu")

from PyQt6.QtCore import QTimer, QUrl  # noqa: E402
from PyQt6.QtWebEngineCore import QWebEnginePage  # noqa: E402
from PyQt6.QtWebEngineWidgets import QWebEngineView  # noqa: E402
from PyQt6.QtWidgets import QApplication  # noqa: E402

LOOK = """JSON.stringify({
  scroll_width: document.documentElement.scrollWidth, client_width: document.documentElement.clientWidth,
  dead_links: [...document.querySelectorAll('a[href^="#"]')].map(a => a.getAttribute('href'))
    .filter(href => !document.getElementById(decodeURIComponent(href.slice(1))))})"""


class Page(QWebEnginePage):
    def __init__(self, parent: QWebEngineView):
        super().__init__(parent)
        self.messages: list[str] = []

    def javaScriptConsoleMessage(self, level, message, line, source) -> None:  # noqa: N802 (Qt's name)
        self.messages.append(f"{line}: {message}")


def main(path: str, width: str, screenshot: str) -> int:
    app = QApplication(sys.argv[:1])
    view = QWebEngineView()
    page = Page(view)
    view.setPage(page)
    view.resize(int(width), 1500)
    view.show()
    found: dict = {}

    def looked(text: str) -> None:
        found.update(json.loads(text))
        QTimer.singleShot(500, lambda: (view.grab().save(screenshot), app.quit()))

    def loaded(is_loaded: bool) -> None:
        found["loaded"] = is_loaded
        page.runJavaScript(LOOK, 0, looked)

    page.loadFinished.connect(loaded)
    QTimer.singleShot(120_000, app.quit)
    view.load(QUrl.fromLocalFile(str(Path(path).resolve())))
    app.exec()
    print(json.dumps(found | {"console": page.messages}))
    return 0 if found.get("loaded") else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
