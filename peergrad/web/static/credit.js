// What each word was credited with, as heat over the text. Nothing said about a word, and 0, look different.

"use strict";
{
  const { Text, html, signed, visible } = pg;

  // The largest credit of a debate: all its turns share one scale.
  function largestCredit(turns, stream) {
    const sizes = turns.flatMap((turn) => (turn.credit ?? []).map((one) => Math.abs(valueOf(one, stream) ?? 0)));
    return Math.max(0, ...sizes);
  }

  function valueOf([, , , sum, byStream], stream) {
    return stream < 0 ? sum : (byStream[stream] ?? null);
  }

  // Five steps each way: shades that can be told apart, without a style of their own for every number.
  function shade(value, largest) {
    if (value === null) return "credit none";
    if (value === 0 || !largest) return "credit zero";
    return `credit ${value > 0 ? "plus" : "minus"}${Math.max(1, Math.ceil((5 * Math.abs(value)) / largest))}`;
  }

  // `stream` is its place, -1 for the sum of all. With `tokens`, every token is a piece that says how likely it was.
  function CreditText({ turn, stream, largest, names, tokens = false }) {
    const all = turn.credit ?? [];
    if (!all.length) return html`<bdi class="text raw"><span class="credit none" title="no credit"><${Text}
      text=${turn.text} /></span></bdi>`;
    return html`<bdi class="text raw">${all.map((stretch, index) => {
      const [start, end] = stretch;
      const value = valueOf(stretch, stream);
      const inner = tokens && turn.tokens ? pieces(turn, start, end) : html`<${Text} text=${turn.text.slice(start, end)} />`;
      return html`<span key=${index} class=${shade(value, largest)} data-credit=${value === null ? "none" : String(value)}
        title=${told(stretch, stream, names)}>${inner}</span>`;
    })}</bdi>`;
  }

  function told([, , tokens, sum, byStream], stream, names) {
    const of = (value) => (value === null ? "nothing said" : signed(value, 3));
    const count = tokens === null ? "" : ` on each of ${tokens} tokens`;
    const by = names.map((name, index) => `${name} ${of(byStream[index] ?? null)}`).join(", ");
    return `${stream < 0 ? `sum ${of(sum)}` : `${names[stream]} ${of(byStream[stream] ?? null)}`}${count} (${by})`;
  }

  function pieces(turn, start, end) {
    const { starts, logprobs } = turn.tokens;
    const spans = [];
    for (let index = 0; index < starts.length; index++) {
      const [from, to] = [starts[index], starts[index + 1] ?? turn.text.length];
      if (from < start || from >= end || to <= from) continue;
      const p = Math.exp(logprobs[index]);
      const title = `token ${index}: log-probability ${signed(logprobs[index], 3)}, ${(p * 100).toFixed(1)} %`;
      spans.push(html`<span key=${index} class=${`token p${Math.min(4, Math.floor(p * 5))}`} title=${title}>
        ${visible(turn.text.slice(from, Math.min(to, end)))}</span>`);
    }
    return spans;
  }

  function CreditLegend({ largest, tokens }) {
    const steps = ["minus5", "minus3", "minus1", "zero", "plus1", "plus3", "plus5"];
    return html`<p class="credit-legend"><span>−${largest.toFixed(2)}</span>${steps.map((step) => html`<span key=${step}
      class=${`credit ${step}`}>${step === "zero" ? "0" : "\u00a0"}</span>`)}<span>+${largest.toFixed(2)}</span>
      <span class="credit none">no signal</span>${tokens &&
        html`<span class="soft">Under a token: the fainter the line, the likelier it was.</span>`}</p>`;
  }

  Object.assign(pg, { CreditText, CreditLegend, largestCredit });
}
