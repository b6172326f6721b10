// The keyboard. A page says what its keys do; the list of them is what `?` shows.

"use strict";
{
  const { html, useEffect, useRef } = pg;

  const pages = new Set();

  // `keys` maps a key to { does: "next debate", run: function }. They hold while the component is on the page.
  function useKeys(keys) {
    const held = useRef(keys);
    held.current = keys;
    useEffect(() => {
      pages.add(held);
      return () => pages.delete(held);
    }, []);
  }

  function typing(target) {
    return target instanceof Element && target.closest("input, textarea, select, [contenteditable]") !== null;
  }

  function listenForKeys() {
    addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
      if (typing(event.target) && event.key !== "Escape") return;
      for (const held of [...pages].reverse()) {
        const key = held.current[event.key];
        if (!key) continue;
        event.preventDefault();
        key.run(event);
        return;
      }
    });
  }

  // Every key that does something here, once.
  function keysNow() {
    const all = new Map();
    for (const held of [...pages].reverse()) {
      for (const [key, { does }] of Object.entries(held.current)) if (does && !all.has(key)) all.set(key, does);
    }
    return [...all];
  }

  // A modal with a close button. Escape, a click beside it and the back button close it too.
  function Dialog({ title, onClose, children, wide = false }) {
    const box = useRef(null);
    useEffect(() => {
      const dialog = box.current;
      dialog.showModal();
      return () => dialog.close(); // so that the focus goes back to where it was
    }, []);
    const beside = (event) => event.target === box.current && onClose();
    return html`<dialog ref=${box} class=${wide ? "wide" : ""} aria-label=${title} onClick=${beside} onCancel=${onClose}>
      <div class="inside">
        <header><h2>${title}</h2><button class="close" aria-label="Close" onClick=${onClose}>×</button></header>
        ${children}
      </div>
    </dialog>`;
  }

  Object.assign(pg, { useKeys, listenForKeys, keysNow, Dialog });
}
