"""What a page that was exported holds."""

import json
import re
from html import unescape
from html.parser import HTMLParser


class Page(HTMLParser):
    """The elements of a page, its data by key, and its scripts and styles."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self.data, self.scripts, self.styles, self.metas = [], {}, [], [], {}
        self.files = {}
        self._open, self._held = None, ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.elements.append((tag, attributes))
        if tag == "meta":
            self.metas[attributes.get("name") or attributes.get("http-equiv")] = attributes.get("content")
        self._open, self._held = (tag, attributes), ""

    def handle_data(self, data):
        self._held += data

    def handle_endtag(self, tag):
        if self._open and self._open[0] == tag:
            attributes = self._open[1]
            if tag == "script" and "data-key" in attributes:
                self.data[unescape(attributes["data-key"])] = json.loads(self._held)
            elif tag == "script" and attributes.get("id") == "peergrad-files":
                self.files = json.loads(self._held)
            elif tag == "script" and "src" not in attributes:
                self.scripts.append(self._held)
            elif tag == "style":
                self.styles.append(self._held)
        self._open = None

    def only(self, name):
        """What is under the one key that begins so."""
        (key,) = [key for key in self.data if key.startswith(f"{name}/")]
        return self.data[key]


def file_data(text):
    """Key and value of a file of data in a folder."""
    match = re.fullmatch(r'window\.peergradData\("([^"]*)",(.*)\);\n', text, re.DOTALL)
    return match[1], json.loads(match[2])
