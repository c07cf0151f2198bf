// Keeps the figures of an open page up to date: every two seconds it reads the page's changing part and changes in the
// document what differs, so that focus, scrolling and opened parts stay. It rests while nobody looks, and on demand.
"use strict";

const EVERY = 2000, AT_MOST = 30000; // milliseconds between two readings; after failures in a row up to AT_MOST
const main = document.querySelector("main[data-live]");
if (main) {
  const button = document.getElementById("pause");
  const announcer = document.getElementById("announcer");
  const trouble = document.getElementById("trouble");
  let timer = 0, failures = 0, paused = false, ended = false, reading = null;
  let announced = spoken(main);

  button.hidden = false;
  button.addEventListener("click", () => {
    paused = !paused;
    button.textContent = paused ? "Resume updates" : "Pause updates";
    schedule(0);
  });
  document.addEventListener("visibilitychange", () => schedule(0));
  schedule(EVERY);

  function schedule(delay) {
    clearTimeout(timer);
    if (paused || ended || document.hidden) {
      if (reading) reading.abort();
      return;
    }
    timer = setTimeout(read, delay);
  }

  async function read() {
    if (reading) return;
    reading = new AbortController();
    try {
      const answer = await fetch(location.href, {
        headers: { "X-Privalign-Live": "1" },
        credentials: "same-origin",
        cache: "no-store",
        signal: AbortSignal.any([reading.signal, AbortSignal.timeout(AT_MOST)]),
      });
      if (answer.status === 401) {
        ended = true;
        tell("The session has ended. Load the page again to log in; the figures are as of the time shown.");
      } else if (!answer.ok) {
        throw new Error("no figures");
      } else {
        const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
        children(main, fresh.querySelector("main"));
        failures = 0;
        tell("");
        announce();
      }
    } catch (error) {
      if (error.name !== "AbortError") {
        failures += 1;
        if (failures > 1) tell("The gateway does not answer; the figures are as of the time shown.");
      }
    } finally {
      reading = null;
      schedule(Math.min(EVERY * 2 ** failures, AT_MOST));
    }
  }

  function announce() { // whole per cents only: a screen reader is told what matters, not every digit
    const now = spoken(main);
    if (now !== announced) announcer.textContent = announced = now;
  }

  function tell(text) {
    if (trouble.textContent !== text) trouble.textContent = text;
    trouble.hidden = text === "";
  }
}

function spoken(root) {
  const element = root.querySelector("[data-announce]");
  return element ? element.textContent.trim() : "";
}

// Makes `old` like `fresh`, changing only what differs.
function morph(old, fresh) {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) {
    old.replaceWith(document.importNode(fresh, true));
  } else if (old.nodeType === Node.ELEMENT_NODE) {
    for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    for (const { name } of [...old.attributes]) {
      if (!fresh.hasAttribute(name) && !(name === "open" && old.nodeName === "DETAILS")) old.removeAttribute(name);
    }
    children(old, fresh);
  } else if (old.nodeValue !== fresh.nodeValue) {
    old.nodeValue = fresh.nodeValue;
  }
}

function children(old, fresh) {
  const before = [...old.childNodes], after = [...fresh.childNodes];
  after.forEach((node, index) => {
    if (index < before.length) morph(before[index], node);
    else old.append(document.importNode(node, true));
  });
  before.slice(after.length).forEach((node) => node.remove());
}
