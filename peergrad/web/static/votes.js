// Who voted what about whom, round by round; and the two texts a vote is about, as its voter saw them.

"use strict";
{
  const { Dialog, Grade, Name, Text, html, percent, setQuery, signed } = pg;

  const WHY = {
    self_vote: "names its own author",
    unknown_agent: "names nobody here",
    same_agent: "names one agent twice",
    unseen: "about somebody its author had not seen",
    repeated: "said before in this turn",
    contradictory: "another vote of this turn says otherwise",
    no_weight: "a judge's, whose votes do not count here",
  };

  const said = (vote) => (vote.op === "=" || vote.strength === 0 ? `${vote.a} = ${vote.b}` : `${vote.a} > ${vote.b}`);
  const strength = (vote) => (vote.strength === 1 || vote.op === "=" ? "" : ` ${vote.strength.toFixed(2)}`);
  const openVote = (vote) => setQuery({ vote: vote.key }, { push: true });

  function VoteChip({ vote }) {
    const title = vote.counts ? "show the two texts" : `does not count: ${WHY[vote.why] ?? vote.why}`;
    return html`<button class=${`vote ${vote.counts ? "" : "void"}`} title=${title} onClick=${() => openVote(vote)}>
      ${said(vote)}${strength(vote)}${vote.right === 1 && html` <${Grade} right=${true}
        words=${false} />`}${vote.right === 0 && html` <${Grade} right=${false} words=${false} />`}</button>`;
  }

  // A row for each pair, a column for each voter. Rounds without a vote are left out.
  function VoteMatrix({ debate, round }) {
    const turns = debate.turns.filter((turn) => turn.round === round);
    const votes = debate.votes.filter((vote) => turns.some((turn) => turn.turn === vote.turn));
    if (!votes.length) return null;
    const counted = votes.filter((vote) => vote.counts);
    const pairs = counted.map(({ a, b }) => [Math.min(a, b), Math.max(a, b)]).sort((x, y) => x[0] - y[0] || x[1] - y[1]);
    const rows = [...new Map(pairs.map((pair) => [pair.join(), pair])).values()];
    const voters = debate.seats.map((seat) => seat.agent);
    const shared = turns.filter((turn) => turn.shares);
    const pairwise = html`<div class="scroll"><table class="matrix" data-round=${round}>
      <caption>Votes of round ${round + 1}</caption>
      <thead><tr><th scope="col">on</th>${voters.map((agent) => html`<th key=${agent} scope="col"
        class=${`seat${agent % 6}`}>by ${agent}</th>`)}<th scope="col">together</th></tr></thead>
      <tbody>${rows.map(([a, b]) => html`<tr key=${`${a}-${b}`}><th scope="row">${a} and ${b}</th>
        ${voters.map((agent) => html`<td key=${agent}><${Cell} ...${{ a, b, agent, turns }}
          votes=${counted.filter((vote) => vote.author === agent && isOn(vote, a, b))} /></td>`)}
        <td class="together">${together(counted.filter((vote) => isOn(vote, a, b)), a, b)}</td></tr>`)}</tbody>
    </table></div>`;
    return html`${shared.length > 0 ? html`<${ShareMatrix} ...${{ debate, turns: shared, round }} />
        <details class="pairwise"><summary>The same as ${counted.length} votes on pairs</summary>${pairwise}</details>` : pairwise}
      <${Void} votes=${votes.filter((vote) => !vote.counts)} />`;
  }

  // Of voters that were asked for no words: a row for each agent and the value it gave, a column for each voter.
  function ShareMatrix({ debate, turns, round }) {
    const all = turns.flatMap((turn) => turn.shares.flatMap(({ agents, value, share }) =>
      agents.map((agent) => ({ agent, value, share, by: turn.agent }))));
    const rows = [...new Map(all.map((one) => [one.agent, one])).values()].sort((x, y) => x.agent - y.agent);
    const best = debate.protocol.settings.ballot_form === "soft-choice";
    const right = (agent) => debate.turns.findLast((turn) => turn.agent === agent && turn.turn < turns[0].turn)?.grade?.right ?? null;
    return html`<div class="scroll" tabindex="0"><table class="matrix shares">
      <caption>How likely each voter of round ${round + 1} found each answer to be ${best ? "the best" : "right"}</caption>
      <thead><tr><th scope="col">asked about</th>${turns.map((turn) => html`<th key=${turn.turn} scope="col"
        class=${`seat${turn.agent % 6}`}>by ${turn.agent}</th>`)}<th scope="col">mean</th></tr></thead>
      <tbody>${rows.map(({ agent, value }) => html`<tr key=${agent}><th scope="row">Agent ${agent}: ${value === null
          ? html`<span class="none">no value</span>` : html`<span class="answer"><${Name} text=${value} /></span>`}
          ${" "}<${Grade} right=${right(agent)} words=${false} /></th>
        ${turns.map((turn) => html`<td key=${turn.turn}><${Share} self=${turn.agent === agent}
          share=${all.find((one) => one.agent === agent && one.by === turn.agent)?.share} /></td>`)}
        <td class="together">${percent(meanShare(all.filter((one) => one.agent === agent)))}</td></tr>`)}</tbody>
    </table></div>`;
  }

  function Share({ share, self }) {
    if (share === undefined) return html`<span class="none" title=${self ? "about itself nobody votes" : "was not asked"}>
      ${self ? "·" : "–"}</span>`;
    return html`<span class=${`cell ${share > 0.5 ? "first" : "second"}`} data-share=${share}
      style=${{ "--strength": Math.abs(2 * share - 1) }}>${percent(share)}</span>`;
  }

  const meanShare = (votes) => votes.reduce((sum, { share }) => sum + share, 0) / votes.length;

  const isOn = (vote, a, b) => (vote.a === a && vote.b === b) || (vote.a === b && vote.b === a);

  function Cell({ a, b, agent, turns, votes }) {
    if (votes.length) {
      return votes.map((vote) => html`<button key=${vote.key}
        class=${`cell ${vote.op === "=" || vote.strength === 0 ? "tie" : vote.a === a ? "first" : "second"}`}
        style=${{ "--strength": vote.strength }} data-vote=${vote.key}
        title=${`Agent ${vote.author}: ${said(vote)}${vote.copied ? "; copied from the prompt or the seats" : ""}`}
          onClick=${() => openVote(vote)}>${said(vote)}<small>${strength(vote)}</small></button>`);
    }
    if (agent === a || agent === b) return html`<span class="none" title="about itself nobody votes">·</span>`;
    return html`<span class="none"
      title=${turns.some((turn) => turn.agent === agent && turn.pairs_due > 0) ? "no valid vote on these two" : "was not asked"}>–</span>`;
  }

  function together(votes, a, b) {
    const sum = votes.reduce((total, vote) => total + (vote.op === "=" ? 0 : (vote.a === a ? 1 : -1) * vote.strength), 0);
    if (Math.abs(sum) < 1e-9) return `${a} = ${b}`;
    return `${sum > 0 ? a : b} > ${sum > 0 ? b : a}`;
  }

  function Void({ votes }) {
    if (!votes.length) return null;
    return html`<p class="void-votes">Not counted: ${votes.map((vote, index) => html`<span key=${index}>${index > 0 && ", "}
      <s>${said(vote)}</s> by Agent ${vote.author} <span class="soft">(${WHY[vote.why] ?? vote.why})</span></span>`)}</p>`;
  }

  // Under which letter and in which order a turn was shown the words of others.
  function asSeen(debate, turn, agents) {
    const letters = new Map((turn.candidates ?? []).flatMap(([letter, of]) => of.map((agent) => [agent, letter])));
    const rotated = debate.protocol.settings?.order_shown !== "seat";
    const place = (agent) => {
      if (letters.size) return [...letters.keys()].indexOf(agent);
      return rotated ? (agent - turn.agent + debate.seats.length) % debate.seats.length : agent;
    };
    return [...agents].sort((x, y) => place(x) - place(y)).map((agent) => ({ agent, letter: letters.get(agent) ?? null }));
  }

  function effectOf(vote) {
    if (!vote.counts) return `It does not count: ${WHY[vote.why] ?? vote.why}`;
    const by = vote.strength === 1 ? "" : `, by ${signed(vote.strength)}`;
    const effect = vote.op === "=" ? "A tie: half to each" : `For Agent ${vote.a}, against Agent ${vote.b}${by}`;
    if (vote.right !== 0 && vote.right !== 1) return effect;
    return `${effect}; it goes to the ${vote.right ? "right" : "wrong"} one of a right and a wrong answer`;
  }

  function VoteDialog({ debate, name, onClose }) {
    const vote = debate.votes.find((one) => one.key === name);
    if (!vote) return null;
    const turn = debate.turns[vote.turn] ?? debate.verdict;
    const shown = asSeen(debate, turn, [vote.a, vote.b]);
    const judged = { [vote.a]: vote.judged?.[0], [vote.b]: vote.judged?.[1] };
    const by = vote.turn >= debate.turns.length ? "The judge" : `Agent ${vote.author}`;
    return html`<${Dialog} title=${`${by} votes ${said(vote)}`} onClose=${onClose} wide=${true}>
      <p>${effectOf(vote)}.
        ${vote.copied && " It stands in the prompt, or is the same for every seat."}</p>
      <p class="soft">The two texts, in the order in which ${by} was shown them${shown[0].letter ? " and under its letters" : ""}:</p>
      <div class="two">${shown.map(({ agent, letter }) => html`<${Judged} key=${agent} ...${{ debate, agent, letter }}
        index=${judged[agent]} won=${vote.op !== "=" && agent === vote.a} />`)}</div>
    <//>`;
  }

  function Judged({ debate, agent, letter, index, won }) {
    const turn = index === null || index === undefined ? null : debate.turns[index];
    const solution = turn?.sections.find((section) => section.name === "solution");
    const text = turn && (solution ? turn.text.slice(...solution.inner).trim() : turn.text);
    return html`<article class=${`judged seat${agent % 6} ${won ? "won" : ""}`}>
      <header><b>${letter ? `${letter}: Agent ${agent}` : `Agent ${agent}`}</b>${turn &&
        html` <span class="soft">round ${turn.round + 1}</span>`}${won && html` <span class="preferred">preferred</span>`}
        ${turn?.grade && html` <${Grade} right=${turn.grade.right} />`}</header>
      ${turn ? html`<div class="said"><${Text} text=${text} /></div>`
        : html`<p class="soft">It judges no turn: its author had not seen this agent.</p>`}
    </article>`;
  }

  Object.assign(pg, { VoteChip, VoteMatrix, VoteDialog, said });
}
