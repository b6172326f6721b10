// One turn: what was said, what it saw, its votes, its grade, and where its rewards come from.

"use strict";
{
  const { CreditText, Grade, Name, Text, VoteChip, address, count, html, many, percent, readHash, said, signed, useEffect, useRef, useState, words } = pg;

  function Turn({ debate, turn, view, stream, largest, find, target }) {
    const box = useRef(null);
    useEffect(() => {
      if (target) box.current.scrollIntoView({ block: "start" });
    }, [target]);
    const personas = debate.protocol.settings?.personas;
    const persona = personas?.length ? personas[turn.agent % personas.length].name : "";
    const { path, query } = readHash(location.hash);
    const judge = turn.agent >= debate.seats.length;
    return html`<article ref=${box} id=${`turn-${turn.turn}`}
      class=${`turn seat${turn.agent % 6} ${turn.error ? "unreadable" : ""} ${target ? "target" : ""}`}
        aria-label=${judge ? "the judge" : `Agent ${turn.agent}, round ${turn.round + 1}`}>
      <header>
        <b class="who">${judge ? "Judge" : `Agent ${turn.agent}`}</b>
        ${persona && !judge && html`<span class="persona"><${Name} text=${persona} /></span>`}
        ${turn.by && html`<span class="badge" title="an opponent: not the policy in training">by <${Name} text=${turn.by} />
          </span>`}
        ${turn.grade && (turn.grade.right !== null || turn.grade.answer !== null) && html`<span class="graded"
          title=${turn.grade.reason ?? ""}><${Grade} right=${turn.grade.right} />${turn.grade.answer !== null &&
            html` <span class="answer"><${Name} text=${turn.grade.answer} /></span>`}</span>`}
        <a class="anchor" href=${address(path, { ...query, turn: turn.turn, vote: "" })} title="address of this turn"
          aria-label=${`address of turn ${turn.turn}`}>#${turn.turn}</a>
      </header>
      ${turn.error && html`<p class="problem">Unreadable: <${Name} text=${turn.error} /></p>`}
      ${turn.truncated && html`<p class="problem">Cut off by the token limit</p>`}
      ${turn.tolerated && html`<p class="problem mild">Not in the exact form</p>`}
      ${view === "credit" && !judge ? html`<${CreditText} ...${{ turn, stream, largest }}
        names=${debate.streams.map((one) => one.name)} tokens=${query.tokens === "1"} />`
        : view === "" && turn.shares ? html`<${Shares} shares=${turn.shares} />`
        : view === "raw" || !turn.sections.length ? html`<div class="raw"><${Text} text=${turn.text} find=${find} /></div>`
        : html`<${Sections} turn=${turn} find=${find} />`}
      <${Votes} debate=${debate} turn=${turn} />
      ${!judge && html`<${Rewards} debate=${debate} turn=${turn} />`}
      <${Prompt} debate=${debate} turn=${turn} find=${find} />
    </article>`;
  }

  function Sections({ turn, find }) {
    return html`<dl class="sections">${turn.sections.map((section) => {
      const text = turn.text.slice(...section.inner).replace(/<\/?think>/gi, "").trim();
      const empty = /^(n\/a)?$/i.test(text);
      return html`<div key=${section.start} class=${`section ${section.name} ${empty ? "blank" : ""}`}><dt>
        ${words(section.name)}</dt><dd>${empty ? html`<span class="none">${text || "–"}</span>` : html`<${Text} text=${text}
          find=${find} />`}</dd></div>`;
    })}</dl>`;
  }

  // What it found of each candidate, where it was asked for no words.
  function Shares({ shares }) {
    return html`<ul class="chosen">${shares.map(({ agents, value, share }) => html`<li key=${agents.join()}><b>
      ${percent(share)}</b> ${value !== null && html`<span class="answer"><${Name} text=${value} /></span> `}<span class="soft">
        of Agent ${agents.join(", ")}</span></li>`)}</ul>`;
  }

  function Votes({ debate, turn }) {
    const votes = debate.votes.filter((vote) => vote.turn === turn.turn);
    if (!votes.length && !turn.pairs_due && !turn.malformed) return null;
    return html`<p class="votes"><span class="label">Votes</span>
      ${votes.map((vote, index) => html`<${VoteChip} key=${index} vote=${vote} />`)}
      ${!votes.length && turn.pairs_due > 0 &&
        html`<span class="problem">none, though ${many(turn.pairs_due, "was", "were")} due</span>`}
      ${turn.malformed > 0 && html`<span class="soft">${count(turn.malformed)} malformed</span>`}
    </p>`;
  }

  // What the turn was shown, all of it: a prompt that continues another's is put together.
  function promptOf(debate, turn) {
    if (!turn.asked) return null;
    return turn.asked.flatMap((message) => {
      if (message.continues === undefined) return [message];
      const before = debate.turns[message.continues];
      if (!before || before.turn >= turn.turn) return [];
      return [...(promptOf(debate, before) ?? []), { role: "assistant", text: before.text }];
    });
  }

  function Prompt({ debate, turn, find }) {
    const [open, setOpen] = useState(false);
    if (!turn.asked) return html`<p class="prompt soft">Its prompt was not kept.</p>`;
    return html`<details class="prompt" onToggle=${(event) => setOpen(event.target.open)}>
      <summary>What it saw${turn.prompt_tokens !== null && turn.prompt_tokens !== undefined && html` <small>
        ${count(turn.prompt_tokens)} tokens</small>`}${turn.sampled_tokens > 0 &&
          html` <small>· said ${count(turn.sampled_tokens)}</small>`}${typeof turn.temperature === "number" &&
            html` <small>· temperature ${turn.temperature}</small>`}</summary>
      ${open && promptOf(debate, turn).map((message, index) => html`<div key=${index} class=${`message ${message.role}`}><b>
        ${message.role}</b><div class="raw"><${Text} text=${message.text} find=${find} /></div></div>`)}
    </details>`;
  }

  // Each reward of the turn: its value, its baseline, and the votes that made it.
  function Rewards({ debate, turn }) {
    const streams = debate.streams.map((stream, place) => ({ ...stream, place, at: stream.unit === "agent" ? turn.agent : turn.turn }));
    const shown = streams.filter((stream) => stream.unit === "turn");
    if (!shown.length) return null;
    return html`<details class="rewards"><summary>${shown.map((stream) => html`<span key=${stream.name} class="reward"
      data-stream=${stream.name} data-value=${String(stream.values[stream.at] ?? "none")}
        data-advantage=${String(stream.advantages[stream.at] ?? "none")}>
        ${stream.name} <b class=${tone(stream.values[stream.at])}>${signed(stream.values[stream.at])}</b>
          </span> `)}</summary>
      ${turn.grade?.reason && html`<p class="why">Grade: <${Name} text=${turn.grade.reason} /></p>`}
      ${shown.map((stream) => html`<${Reward} key=${stream.name} ...${{ debate, stream }} label=${stream.name}
        silent=${silence(stream, turn)} effect=${(vote) => effect(stream, vote, turn)}
        note=${stream.name === "format" && form(turn, stream.values[stream.at])} />`)}
    </details>`;
  }

  const tone = (value) => (value === null || value === undefined ? "none" : value > 0 ? "plus" : value < 0 ? "minus" : "zero");

  // One reward, of a turn or of an agent: `stream.at` is its place. `effect` says what a vote does to it.
  function Reward({ debate, stream, label, effect, silent = "", note = "" }) {
    const [value, advantage] = [stream.values[stream.at], stream.advantages[stream.at]];
    const votes = (stream.votes[stream.at] ?? []).map((index) => debate.votes.find((vote) => vote.index === index)).filter(Boolean);
    if (value === null || value === undefined) return html`<div class="why"><b>
      ${label}</b>: no signal. ${silent}</div>`;
    const { center, divide_by_std: divided } = debate.rules;
    const over = { group: "of this debate", batch: "of the batch", seat: "of this seat and round in the batch" }[center] ?? "of its set";
    const known = advantage !== null && advantage !== undefined;
    const baseline = divided ? ", divided by its deviation" : ` ${signed(value - advantage, 3)}`;
    const weight = stream.weight === 1 ? "" : `, times weight ${stream.weight}`;
    const where = stream.sections ? `, on ${stream.sections.map(words).join(" and ")}` : "";
    return html`<div class="why"><p><b>${label} ${signed(value, 3)}</b>
      ${known && html`, less the mean ${over}${baseline}: advantage <b>${signed(advantage, 3)}</b>`}${known && weight}${where}.</p>
      ${votes.length > 0 && html`<ul>${votes.map((vote) => html`<li key=${vote.index}>${by(debate, vote)}: <b>
        ${said(vote)}</b>${vote.strength !== 1 ? ` by ${vote.strength.toFixed(2)}` : ""} <span class="soft">
          ${effect(vote)}</span></li>`)}</ul>`}
      ${note && html`<p class="soft">${note}</p>`}</div>`;
  }

  function by(debate, vote) {
    const turn = debate.turns[vote.turn];
    return turn ? `Agent ${vote.author} in round ${turn.round + 1}` : "the judge";
  }

  function silence(stream, turn) {
    if (stream.name === "format") return "It was asked for choices, or an opponent spoke.";
    if (stream.name === "judge") return turn.pairs_due ? "It has no vote that a consensus could be held against." : "It was not asked to vote.";
    return turn.by ? "An opponent spoke: it is not trained." : "No vote judges this turn.";
  }

  // What a vote does to this turn, where that is one word.
  function effect(stream, vote, turn) {
    if (stream.name === "judge") return vote.author === turn.agent ? "its own vote" : "part of the consensus";
    if (stream.name === "diagnosis") return "";
    const [a, b] = vote.judged ?? [];
    if (vote.op === "=") return "a tie";
    return a === turn.turn ? "for it" : b === turn.turn ? "against it" : "on an equal answer";
  }

  function form(turn, value) {
    if (turn.error) return "The reply can't be read.";
    const unvoted = turn.unvoted > 0 && `no valid vote on ${Math.round(turn.unvoted * 100)} % of the pairs due`;
    const parts = [turn.tolerated && "not in the exact form", unvoted];
    const found = parts.filter(Boolean).join("; ");
    return found || (value < 0 ? "The answer is not in the form asked for." : "Nothing to object to.");
  }

  Object.assign(pg, { Turn, Reward, tone });
}
