// Small pieces that several pages use.

"use strict";
{
  const { Name, address, html, percent, useEffect, useRef, useState, visible } = pg;

  const STATUS = { running: "●", finished: "✓", unfinished: "◐", damaged: "✗" };

  function Status({ value }) {
    return html`<span class=${`status ${STATUS[value] ? value : ""}`}><span aria-hidden="true">
      ${STATUS[value] ?? "○"}</span> <${Name} text=${value} /></span>`;
  }

  // Right, wrong or unknown: a sign and a word, never only a colour.
  function Grade({ right, words = true }) {
    const known = right === true || right === false;
    const [kind, sign, word] = !known ? ["unknown", "○", "not graded"] : right ? ["right", "✓", "right"] : ["wrong", "✗", "wrong"];
    return html`<span class=${`grade ${kind}`} aria-label=${word}>${sign}${words && ` ${word}`}</span>`;
  }

  // Whether each agent's answer is right, a line for each round: the whole debate at a glance.
  function RightGrid({ right }) {
    const signs = (round) => round.map((one) => (one === null ? "○" : one ? "✓" : "✗"));
    const spoken = right.map((round, index) => `round ${index + 1}: ${signs(round).join("")}`).join(", ");
    return html`<span class="right-grid" role="img" aria-label=${spoken}
      title="a line for each round, a place for each agent">${right.map(
      (round, index) => html`<span key=${index}>${round.map(
        (one, agent) => html`<i key=${agent} class=${one === null ? "unknown" : one ? "right" : "wrong"}></i>`,
      )}</span>`,
    )}</span>`;
  }

  function Failed({ error }) {
    return html`<p class="failed" role="alert"><${Name} text=${error} /></p>`;
  }

  // What stands in place of a page until its data is there.
  function Waiting({ state, what }) {
    return state.error ? html`<${Failed} error=${state.error} />` : html`<p class="loading">Reading ${what}…</p>`;
  }

  // The heading of a column by which a table can be sorted; `by` is the current order, such as "-votes".
  function SortHead({ column, by = "", onSort, children, title, number = false }) {
    const state = by === column ? "ascending" : by === `-${column}` ? "descending" : "none";
    const next = state === "descending" ? column : state === "ascending" ? "" : `-${column}`;
    return html`<th scope="col" aria-sort=${state} class=${number ? "number" : ""}>
      <button class="sort" title=${title} onClick=${() => onSort(next)}>
        ${children}<span aria-hidden="true">${{ ascending: " ↑", descending: " ↓", none: "" }[state]}</span>
      </button>
    </th>`;
  }

  // A share with its interval as a line: where it is, and how sure that is.
  function Interval({ value, low, high, reference = null }) {
    if (typeof value !== "number") return html`<span class="none">–</span>`;
    const x = (share) => Math.min(1, Math.max(0, share)) * 120 + 4;
    const said = `${percent(value, 1)}, from ${percent(low, 1)} to ${percent(high, 1)}`;
    return html`<svg class="interval" viewBox="0 0 128 16" role="img" aria-label=${said}>
      <path class="rail" d="M4 8H124" />
      ${typeof reference === "number" && html`<path class="reference" d=${`M${x(reference)} 1V15`} />`}
      ${typeof low === "number" && typeof high === "number" && html`<path class="bar" d=${`M${x(low)} 8H${x(high)}`} />`}
      <circle cx=${x(value)} cy="8" r="4" />
    </svg>`;
  }

  // A field that changes the query once nobody types any more. Until then what was typed stays, whatever is drawn anew.
  function Field({ label, value = "", onChange, placeholder, id }) {
    const [typed, setTyped] = useState(null);
    const timer = useRef(null);
    useEffect(() => () => clearTimeout(timer.current), []);
    const later = ({ target }) => {
      setTyped(target.value);
      clearTimeout(timer.current);
      timer.current = setTimeout(() => {
        onChange(target.value);
        setTyped(null);
      }, 200);
    };
    return html`<label class="field"><span>${label}</span>
      <input type="search" id=${id} value=${typed ?? value} placeholder=${placeholder} onInput=${later} autocomplete="off"
        spellcheck=${false} />
    </label>`;
  }

  function Choice({ label, value, options, onChange }) {
    return html`<span class="choice" role="group" aria-label=${label}><span class="label">${label}</span>
      ${options.map(([key, name, title]) => html`<button key=${key} aria-pressed=${String(value === key)} title=${title}
        onClick=${() => onChange(key)}>${name}</button>`)}
    </span>`;
  }

  function Pages({ page, size, total, onPage }) {
    const last = Math.max(0, Math.ceil(total / size) - 1);
    if (!last) return null;
    return html`<nav class="pages" aria-label="pages of the table">
      <button disabled=${page <= 0} onClick=${() => onPage(page - 1)}>← Back</button>
      <span>${page * size + 1}–${Math.min(total, (page + 1) * size)} of ${total.toLocaleString("en")}</span>
      <button disabled=${page >= last} onClick=${() => onPage(page + 1)}>Next →</button>
    </nav>`;
  }

  const sourceAddress = (id, ...rest) => address(["source", id, ...rest]);
  const debateAddress = (id, row, query) => address(["source", id, "debate", row.part, row.index], query);

  // The name of a source; of a long way to it the last folder is enough.
  function shortName({ name }) {
    const parts = name.replace(/\/+$/, "").split("/");
    return name.length > 28 && parts.length > 2 ? `…/${parts.slice(-2).join("/")}` : name;
  }

  // Where the source stands: its last folder large, the way to it small.
  function SourceName({ source }) {
    const name = visible(shortName(source));
    const cut = name.replace(/\/+$/, "").lastIndexOf("/") + 1;
    return html`<bdi class="source-name" title=${visible(source.path)}>${cut > 0 && html`<span class="way">
      ${name.slice(0, cut)}</span>`}${name.slice(cut)}</bdi>`;
  }

  Object.assign(pg, { Status, Grade, RightGrid, Failed, Waiting, SortHead, Interval, Field, Choice, Pages });
  Object.assign(pg, { SourceName, shortName, sourceAddress, debateAddress });
}
