// The rows of a table of debates: asked for from the server, or in an export found by the page itself.

"use strict";
{
  const { get, live } = pg;

  const PAGE = 100;

  const FLAGS = [
    ["winner_wrong", "Winner wrong", "The answer that won is wrong"],
    ["agree_wrong", "All agree, wrong", "All agents end on the same wrong answer"],
    ["right_to_wrong", "Right → wrong", "An agent had it right and then changed to a wrong answer"],
    ["wrong_to_right", "Wrong → right", "An agent had it wrong and then changed to the right answer"],
    ["no_winner", "No winner", "Neither votes nor answers name one agent"],
    ["no_signal", "No signal", "No advantage differs from 0: nothing is learned from it"],
    ["alarm", "Alarm", "An alarm of its step names it"],
    ["unreadable", "Unreadable", "A reply can't be read"],
    ["truncated", "Cut off", "A reply reached the token limit"],
    ["malformed", "Malformed vote", "Something looks like a vote and can't be read as one"],
    ["copied", "Copied vote", "A vote stands in the prompt, or is the same for every seat"],
    ["dropped", "Dropped", "The engine failed it; there is no debate to open"],
    ["damaged", "Damaged", "Its line in the file can't be read"],
  ];

  const SORT = {
    part: (row) => row.part,
    id: (row) => row.id,
    question: (row) => row.question,
    rounds: (row) => row.rounds,
    right: (row) => shareRight(row),
    flips: (row) => row.right_to_wrong + row.wrong_to_right,
    winner_right: (row) => (row.winner_right === null ? null : Number(row.winner_right)),
    votes: (row) => row.votes,
    copied: (row) => row.copied,
    malformed: (row) => row.malformed,
    unreadable: (row) => row.unreadable,
    signal: (row) => (row.signal === null ? null : Number(row.signal)),
    chars: (row) => row.chars,
    sampled_tokens: (row) => row.sampled_tokens,
  };

  function shareRight(row) {
    const last = (row.right?.at(-1) ?? []).filter((one) => one !== null);
    return last.length ? last.filter(Boolean).length / last.length : null;
  }

  // One page of the table: { total, matched, flags, rows }. For `useData`.
  async function loadRows([, id], { part, flags, q, sort, page = 0 }) {
    const range = { offset: Number(page) * PAGE, limit: PAGE };
    if (live) return get(["debates", id], { part, flags, q, sort, ...range });
    const all = await get(["debates", id]);
    const here = all.rows.filter((row) => !part || part.split(",").includes(row.part));
    const wanted = flags ? flags.split(",") : [];
    let rows = here.filter((row) => wanted.every((flag) => row.flags.includes(flag)));
    if (q) rows = withSnippets(rows, q, await get(["said", id]));
    if (sort) rows = sorted(rows, sort);
    return { ...all, flags: counted(here), matched: rows.length, rows: rows.slice(range.offset, range.offset + PAGE) };
  }

  function counted(rows) {
    const counts = {};
    for (const row of rows) for (const flag of row.flags) counts[flag] = (counts[flag] ?? 0) + 1;
    return counts;
  }

  function sorted(rows, by) {
    const [down, column] = by.startsWith("-") ? [-1, by.slice(1)] : [1, by];
    const key = SORT[column];
    if (!key) return rows;
    const rank = ([a], [b]) => {
      if (a === b) return 0;
      if (a === null || a === undefined) return 1; // what is not known comes last either way
      if (b === null || b === undefined) return -1;
      return (a < b ? -1 : 1) * down;
    };
    return rows.map((row) => [key(row), row]).sort(rank).map(([, row]) => row);
  }

  function withSnippets(rows, q, said) {
    const texts = new Map(said.debates.map((one) => [`${one.part}/${one.index}`, one.texts]));
    const needle = q.toLowerCase();
    return rows.flatMap((row) => {
      const all = texts.get(`${row.part}/${row.index}`) ?? [row.question ?? ""]; // of what is not there
      const place = all.findIndex((text) => text.toLowerCase().includes(needle));
      if (place < 0) return [];
      const [text, at] = [all[place], all[place].toLowerCase().indexOf(needle)];
      const [before, after] = [text.slice(Math.max(0, at - 60), at), text.slice(at + q.length, at + q.length + 60)];
      return [{ ...row, snippet: { turn: place ? place - 1 : null, before, hit: text.slice(at, at + q.length), after } }];
    });
  }

  // The debates on one question, in the order of the files.
  async function loadQuestion([, id], { question }) {
    if (live) return get(["question", id], { question });
    const { rows } = await get(["debates", id]);
    const own = rows.filter((row) => row.question_id === question);
    return { question: own[0]?.question ?? "", answer: own[0]?.answer ?? null, rows: own };
  }

  Object.assign(pg, { FLAGS, PAGE, loadRows, loadQuestion });
}
