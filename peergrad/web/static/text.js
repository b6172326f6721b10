// Text that a model wrote, or a name somebody chose: shown whole, as text nodes, and never as markup.

"use strict";
{
  const { html, useState } = pg;

  const LONG = 40000; // characters that are laid out at once; the rest is one click away

  // Signs that hide or turn text: C0 and C1 controls, soft hyphen, zero-width, direction, tags, halves of surrogate pairs.
  const CONTROLS = "\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u00ad\\u061c\\u115f\\u1160\\u180e\\u200b\\u200e\\u200f";
  const MORE = "\\u2028-\\u202e\\u2060-\\u206f\\u3164\\ufeff\\uffa0\\ufff9-\\ufffb\\u{e0000}-\\u{e0fff}\\ud800-\\udfff";
  const HIDDEN = new RegExp(`[${CONTROLS}${MORE}]`, "gu"); // with "u", whole pairs of surrogates are one sign and do not match

  // The text with every such sign written out, so that what is there can be seen: ␀, ‹U+202E›.
  function visible(text) {
    return String(text ?? "").replace(HIDDEN, (sign) => {
      const code = sign.codePointAt(0);
      if (code < 0x20) return String.fromCharCode(0x2400 + code);
      return code === 0x7f ? "\u2421" : `‹U+${code.toString(16).toUpperCase().padStart(4, "0")}›`;
    });
  }

  // A short name on one line.
  function Name({ text }) {
    return html`<bdi class="name">${visible(text)}</bdi>`;
  }

  // A text of any length, with what is searched for marked in it.
  function Text({ text, find = "" }) {
    const [whole, setWhole] = useState(false);
    const shown = visible(text);
    const cut = !whole && shown.length > LONG;
    return html`<bdi class="text">${marked(cut ? shown.slice(0, LONG) : shown, find)}</bdi>${cut &&
    html`<button class="more" onClick=${() => setWhole(true)}>Show all ${shown.length.toLocaleString("en")} characters</button>`}`;
  }

  // The pieces of a text, those that equal what is searched for in a <mark>; letters count alike in either case.
  function marked(text, find) {
    if (!find) return text;
    const [hay, needle] = [text.toLowerCase(), find.toLowerCase()];
    if (hay.length !== text.length) return text; // lower case moved the offsets: rare scripts
    const pieces = [];
    let from = 0;
    for (let at = hay.indexOf(needle); at >= 0 && pieces.length < 2000; at = hay.indexOf(needle, from)) {
      pieces.push(text.slice(from, at), html`<mark>${text.slice(at, at + needle.length)}</mark>`);
      from = at + needle.length;
    }
    return [...pieces, text.slice(from)];
  }

  Object.assign(pg, { visible, Name, Text, marked });
}
