// What the page adds where there is JavaScript: parts are replaced when the server says that figures have changed, and keys.
"use strict";
(() => {
  const body = document.body, base = body.dataset.base;
  const pause = document.getElementById("pause"), pauseText = document.getElementById("pause-text"), lost = document.getElementById("lost");
  const keys = document.getElementById("keys"), keysOff = document.getElementById("keys-off");
  let paused = false, waiting = 0, running = false, again = false, missed = 0, late = [], status = 200, other = false, retry;

  // A part stays as it is while somebody works in it, or points at its rows: they do not move under the pointer. It is updated when
  // they leave it. Other figures change in place.
  const rows = "table, ul, ol";
  const busy = (part) => part.contains(document.activeElement) || part.matches(":hover:not(.pipeline)") && (part.matches(rows) || part.querySelector(rows));

  const swap = (page) => {
    late = [];
    for (const part of document.querySelectorAll("[data-part]")) {
      const now = page.getElementById(part.id);
      if (!now || part.innerHTML === now.innerHTML) continue;
      if (busy(part)) late.push(part);
      else part.replaceChildren(...document.adoptNode(now).childNodes); // not the part itself: it may be a live region
    }
  };

  const shape = (page) => [...page.querySelectorAll("main [data-part]")].map((part) => part.id).join();
  const main = document.getElementById("main");
  const inUse = () => main.contains(document.activeElement) && document.activeElement !== main || main.querySelector(rows.replace(/\w+/g, "$&:hover")) ||
    [...main.querySelectorAll("input:not([type=hidden]), textarea")].some((field) => field.value !== field.defaultValue);
  const rebuild = (page) => { // all but what lies around: somebody may type an event ID there
    const next = document.adoptNode(page.getElementById("main")), trouble = document.getElementById("trouble"), now = next.querySelector("#trouble");
    if (trouble.innerHTML !== now.innerHTML) trouble.replaceChildren(...now.childNodes);
    now.replaceWith(trouble); // live regions stay the same elements
    next.querySelector("#lost").parentNode.replaceWith(lost.parentNode);
    main.replaceChildren(...next.childNodes);
    document.title = page.title;
    document.querySelector(".top h1").textContent = page.querySelector(".top h1").textContent;
  };

  const refresh = async () => {
    if (running) { again = true; return; }
    running = true;
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" }, credentials: "same-origin", signal: AbortSignal.timeout(10000) });
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (!page.querySelector("#main #lost")) throw answer.status; // it is no page of the console
      if (held()) waiting++;
      else {
        if (answer.status < 500) { // it may have other parts now, such as the first row, or be gone
          other = answer.status !== status || shape(page) !== shape(document);
          if (other && !inUse()) { rebuild(page); status = answer.status; other = false; }
        }
        swap(page);
      }
      if (answer.status >= 500) throw answer.status; // what the page lists is old
      missed = 0;
    } catch { // an answer may be lost although the stream goes on
      if (++missed > 1) lost.hidden = false;
      clearTimeout(retry);
      retry = setTimeout(changed, 3000 * Math.min(missed, 10));
    }
    running = false;
    if (again) { again = false; refresh(); }
  };

  const held = () => paused || document.hidden || keys.open;
  const changed = () => {
    if (held()) {
      waiting++;
      if (paused) pauseText.textContent = "Paused, " + waiting + " new";
      return;
    }
    refresh();
  };

  const caughtUp = () => setTimeout(() => { if (!held() && !missed && (other && !inUse() || late.some((part) => !busy(part)))) refresh(); }); // when the pointer or the focus is elsewhere
  document.addEventListener("pointerout", caughtUp);
  document.addEventListener("focusout", caughtUp);

  const catchUp = () => { if (!held() && waiting) { waiting = 0; refresh(); } };
  const setPaused = (to) => {
    paused = to;
    pause.classList.toggle("off", paused);
    pauseText.textContent = paused ? "Paused" : "Live";
    catchUp();
  };
  keys.addEventListener("close", catchUp);

  if (body.dataset.live && document.querySelector("main form[method=post]:not(.reveal)") === null) { // a form that somebody fills in stays as it is
    let version = body.dataset.version, stream = null, slow, later;
    const alive = () => { lost.hidden = missed < 2; clearTimeout(slow); slow = setTimeout(() => { lost.hidden = false; }, 15000); };
    const connect = () => {
      if (stream || document.hidden) return;
      const live = stream = new EventSource(body.dataset.live);
      live.addEventListener("changed", (e) => {
        alive();
        if (e.data !== version) { version = e.data; changed(); }
        clearTimeout(later); // the server may have had a part of the page in its cache, for a second
        later = setTimeout(() => { if (held()) waiting++; else refresh(); }, 1500);
      });
      live.addEventListener("beat", alive);
      live.addEventListener("error", () => {
        clearTimeout(slow);
        slow = setTimeout(() => { lost.hidden = false; }, 3000);
        if (live.readyState === 2) { stream = null; setTimeout(connect, 3000); } // closed: after an answer other than 200 the browser does not try again
      });
    };
    connect();
    pause.hidden = false;
    pause.addEventListener("click", () => setPaused(!paused));
    document.addEventListener("visibilitychange", () => { // a browser has six connections to a server: hidden pages leave them to the others
      if (document.hidden) { if (stream) stream.close(); stream = null; clearTimeout(slow); return; }
      connect();
      catchUp();
    });
  }

  // Ages count up by the server's clock, as long as the figures beside them are kept up to date. They are written as age in
  // format.go does.
  const two = (s, large, a, small, b) => Math.floor(s / large) + a + (Math.floor(s % large / small) ? Math.floor(s % large / small) + b : "");
  const age = (ms) => {
    const s = Math.max(ms, 0) / 1000, m = 60, h = 60 * m;
    if (s < 10) return (Math.floor(s * 10) / 10).toFixed(1) + " s";
    if (s < 2 * m) return Math.floor(s) + "s";
    if (s < 10 * m) return two(s, m, "m", 1, "s");
    if (s < 2 * h) return Math.floor(s / m) + "m";
    if (s < 8 * h) return two(s, h, "h", m, "m");
    if (s < 48 * h) return Math.floor(s / h) + "h";
    return Math.floor(s / (24 * h)) + "d";
  };
  let ahead = null, clock = null; // how far the server's clock is ahead of this one, and the element that told it
  setInterval(() => {
    const told = document.querySelector("[data-now]");
    if (!told || paused || !lost.hidden || document.querySelector("#trouble p")) return;
    if (told !== clock) { clock = told; ahead = Date.parse(told.dateTime) - Date.now(); }
    const now = Date.now() + ahead;
    clock.textContent = new Date(now).toISOString().slice(11, 19);
    for (const e of document.querySelectorAll("[data-since]")) e.textContent = age(now - Date.parse(e.dateTime));
    for (const e of document.querySelectorAll("[data-until]")) e.textContent = age(Date.parse(e.dateTime) - now);
  }, 1000);

  // Keys: none of them changes anything, and none works while a field has the focus.
  const off = () => { try { return localStorage.getItem("millrace-keys") === "off"; } catch { return false; } };
  keysOff.textContent = off() ? "Switch keys on" : "Switch keys off";
  keysOff.addEventListener("click", () => {
    try { localStorage.setItem("millrace-keys", off() ? "on" : "off"); } catch { /* they stay as they are */ }
    keysOff.textContent = off() ? "Switch keys on" : "Switch keys off";
  });
  const pages = { o: "/", b: "/outbox", c: "/consumers", d: "/dead", e: "/event", f: "/effects", k: "/keys", a: "/audit" };
  const move = (by) => {
    const rows = [...document.querySelectorAll("main tbody th a, main .rows a, main .findings a, main .timeline a")];
    const at = rows.indexOf(document.activeElement);
    const to = rows[at < 0 ? (by > 0 ? 0 : rows.length - 1) : at + by];
    if (to) to.focus();
  };
  let going = false;
  document.addEventListener("keydown", (e) => {
    const field = e.target.closest("input, textarea, select");
    if (e.key === "Escape" && field) { field.blur(); return; }
    if (field || e.ctrlKey || e.metaKey || e.altKey || keys.open) return;
    if (e.key === "?") { keys.showModal(); e.preventDefault(); return; } // also while they are off: they are switched on there
    if (off()) return;
    if (going) {
      going = false;
      if (pages[e.key] && base) { location.href = base + pages[e.key]; e.preventDefault(); }
      return;
    }
    const find = document.getElementById("find"), filter = document.getElementById("filter");
    switch (e.key) {
      case "g": going = true; setTimeout(() => { going = false; }, 1000); break;
      case "/": if (!find) return; find.focus(); break;
      case "f": if (!filter) return; filter.focus(); break;
      case "j": move(1); break;
      case "k": move(-1); break;
      case "p": if (pause.hidden) return; setPaused(!paused); break;
      case "Escape": { const back = document.querySelector(".sheet .bar a.button"); if (!back) return; back.click(); break; }
      default: return;
    }
    e.preventDefault();
  });
})();
