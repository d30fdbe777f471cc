// Stratalog's console. Every page works without this file; with it, times are in the viewer's zone, pages stay fresh,
// records are followed, and some keys work. It sends requests to this server alone.
"use strict";

// Show each time in the viewer's zone; UTC stays in its title.
function localTimes(root) {
  for (const one of root.querySelectorAll("time[datetime]")) {
    const moment = new Date(one.dateTime);
    if (!Number.isNaN(moment.getTime())) {
      one.textContent = moment.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
    }
  }
}

function isBusy() {
  const active = document.activeElement;
  const inForm = active && active.closest("main") && /^(INPUT|SELECT|TEXTAREA|BUTTON)$/.test(active.tagName);
  const selected = String(window.getSelection() || "") !== "";
  return document.hidden || inForm || selected;
}

function say(text) {
  document.getElementById("state").textContent = text;
}

async function loaded(address) {
  const answer = await fetch(address, { headers: { accept: "text/html" }, redirect: "error" });
  return { status: answer.status, page: new DOMParser().parseFromString(await answer.text(), "text/html") };
}

// Replace the page's middle with a fresh one; the focus, scrolled tables and what was unfolded stay as they are.
async function refresh() {
  if (isBusy()) return;
  let next;
  try {
    next = (await loaded(location.href)).page;
  } catch {
    say("The console does not answer; it is asked again.");
    return;
  }
  const fresh = next.querySelector("main");
  const main = document.querySelector("main");
  if (!fresh || isBusy()) return;
  const links = [...main.querySelectorAll("a, summary")];
  const focused = links.indexOf(document.activeElement);
  const scrolled = [...main.querySelectorAll(".wide")].map((one) => one.scrollLeft);
  const unfolded = [...main.querySelectorAll("details[open] > summary")].map((one) => one.textContent);
  fresh.querySelectorAll("summary").forEach((one) => { one.parentElement.open = unfolded.includes(one.textContent); });
  localTimes(fresh);
  main.replaceChildren(...fresh.childNodes);
  main.querySelectorAll(".wide").forEach((one, at) => { one.scrollLeft = scrolled[at] || 0; });
  if (focused >= 0) main.querySelectorAll("a, summary")[focused]?.focus({ preventScroll: true });
  const state = next.getElementById("state");
  localTimes(state);
  document.getElementById("state").replaceChildren(...state.childNodes);
}

// Say beside the button how following goes.
function tell(text, isBad) {
  const line = document.getElementById("following");
  line.hidden = false;
  line.className = isBad ? "notice bad" : "quiet";
  if (line.textContent !== text) line.textContent = text; // a reader of the screen says only what is new
}

// Follow a topic: ask for what comes after the last record, and put it above. Brokers that do not answer are asked again.
const FOLLOWED_ROWS_MAX = 1000;
async function follow(button) {
  const rows = document.getElementById("records");
  button.textContent = "Stop following";
  button.setAttribute("aria-pressed", "true");
  let address = button.dataset.next;
  let ended = false;
  while (!ended && button.getAttribute("aria-pressed") === "true") {
    if (!document.hidden) {
      try {
        const { status, page } = await loaded(address);
        const after = page.getElementById("follow");
        if (!after) {
          const failure = page.querySelector(".notice strong")?.textContent || "No more records can be read.";
          if (status < 500) { ended = true; tell(`${failure}: following ended.`, true); }
          else tell(`${failure}; it is asked again.`, true);
        } else {
          address = after.dataset.next;
          const found = [...page.querySelectorAll("#records > tr[data-offset]")];
          if (found.length) {
            rows.querySelector(".empty")?.closest("tr").remove();
            for (const row of found) { localTimes(row); rows.prepend(row); }
            while (rows.children.length > FOLLOWED_ROWS_MAX) rows.lastElementChild.remove();
          }
          tell(`Following: ${rows.querySelectorAll("tr[data-offset]").length} records are shown.`);
        }
      } catch {
        tell("The console does not answer; it is asked again.", true);
      }
    }
    await new Promise((done) => setTimeout(done, 1000));
  }
  if (!ended) document.getElementById("following").hidden = true;
  button.textContent = "Follow";
  button.setAttribute("aria-pressed", "false");
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("#follow");
  if (!button) return;
  if (button.getAttribute("aria-pressed") === "true") button.setAttribute("aria-pressed", "false");
  else follow(button);
});

// Keys: / goes to the search field, n and p to the next and the last page, g and a letter to a section.
let gone = false;
document.addEventListener("keydown", (event) => {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (typing) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const click = (selector) => document.querySelector(selector)?.click();
  const sections = { o: "/", b: "/brokers", t: "/topics", g: "/groups", x: "/transactions", q: "/quorum", r: "/reassignments", a: "/acls", u: "/quotas", i: "/tier", l: "/pipelines", m: "/metrics", s: "/settings" };
  if (gone && sections[event.key]) location.assign(sections[event.key]);
  else if (event.key === "/") { document.querySelector("[data-key='/']")?.focus(); event.preventDefault(); }
  else if (event.key === "n") click("a[rel=next]");
  else if (event.key === "p") click("a[rel=prev]");
  gone = !gone && event.key === "g";
});

localTimes(document);
document.querySelector("nav [aria-current]")?.scrollIntoView({ inline: "center", block: "nearest" });
const every = Number(document.body.dataset.refresh);
if (every) setInterval(refresh, every * 1000);
