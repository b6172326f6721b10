// The words in which two texts differ.

"use strict";
{
  const MOST = 4000; // words compared exactly; of longer texts whole lines are compared

  // Pieces of two texts in order, each with `kind`: "same", "gone" (only in the first) or "new" (only in the second).
  function wordDiff(before, after) {
    const words = (text) => text.match(/\s+|[\p{L}\p{N}_]+|[^\s\p{L}\p{N}_]/gu) ?? [];
    const lines = (text) => text.split(/(?<=\n)/);
    const long = before.length + after.length > 400000 || words(before).length + words(after).length > 2 * MOST;
    return joined(compared(...(long ? [lines(before), lines(after)] : [words(before), words(after)])));
  }

  function compared(a, b) {
    let start = 0;
    while (start < a.length && start < b.length && a[start] === b[start]) start++;
    let [endA, endB] = [a.length, b.length];
    while (endA > start && endB > start && a[endA - 1] === b[endB - 1]) [endA, endB] = [endA - 1, endB - 1];
    const piece = (kind) => (text) => ({ kind, text });
    return [
      ...a.slice(0, start).map(piece("same")),
      ...middle(a.slice(start, endA), b.slice(start, endB)),
      ...a.slice(endA).map(piece("same")),
    ];
  }

  // Myers' greedy algorithm: the shortest list of removals and additions. It gives up, and says all is new, where there are many.
  function middle(a, b) {
    const most = Math.min(a.length + b.length, 700);
    const furthest = new Map([[1, 0]]);
    const trace = [];
    for (let edits = 0; edits <= most; edits++) {
      trace.push(new Map(furthest));
      for (let k = -edits; k <= edits; k += 2) {
        const down = k === -edits || (k !== edits && furthest.get(k - 1) < furthest.get(k + 1));
        let x = down ? furthest.get(k + 1) : furthest.get(k - 1) + 1;
        while (x < a.length && x - k < b.length && a[x] === b[x - k]) x++;
        furthest.set(k, x);
        if (x >= a.length && x - k >= b.length) return backwards(a, b, trace);
      }
    }
    return [...a.map((text) => ({ kind: "gone", text })), ...b.map((text) => ({ kind: "new", text }))];
  }

  function backwards(a, b, trace) {
    const pieces = [];
    let [x, y] = [a.length, b.length];
    for (let edits = trace.length - 1; edits >= 0; edits--) {
      const [furthest, k] = [trace[edits], x - y];
      const down = k === -edits || (k !== edits && furthest.get(k - 1) < furthest.get(k + 1));
      const fromK = down ? k + 1 : k - 1;
      const fromX = furthest.get(fromK);
      const fromY = fromX - fromK;
      while (x > fromX && y > fromY && x > 0 && y > 0 && a[x - 1] === b[y - 1]) {
        pieces.push({ kind: "same", text: a[x - 1] });
        [x, y] = [x - 1, y - 1];
      }
      if (edits > 0) pieces.push(down ? { kind: "new", text: b[y - 1] } : { kind: "gone", text: a[x - 1] });
      [x, y] = [fromX, fromY];
    }
    return pieces.reverse();
  }

  // What changed in a row as one piece gone and one new; blanks between two changes belong to them.
  function joined(pieces) {
    const out = [];
    let [gone, fresh] = ["", ""];
    const flush = () => {
      if (gone) out.push({ kind: "gone", text: gone });
      if (fresh) out.push({ kind: "new", text: fresh });
      [gone, fresh] = ["", ""];
    };
    pieces.forEach(({ kind, text }, index) => {
      const between = kind === "same" && (gone || fresh) && /^[ \t]+$/.test(text) && index + 1 < pieces.length && pieces[index + 1].kind !== "same";
      if (kind === "gone" || between) gone += text;
      if (kind === "new" || between) fresh += text;
      if (kind !== "same" || between) return;
      flush();
      if (out.at(-1)?.kind === "same") out.at(-1).text += text;
      else out.push({ kind, text });
    });
    flush();
    return out;
  }

  Object.assign(pg, { wordDiff });
}
