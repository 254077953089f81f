// Keeps a page up to date: the server says which topics have changed, the page is fetched again,
// and what differs is replaced. Without this the pages are the same, only still.
const PAUSE_MS = 500;
const main = document.querySelector("#main");
const say = document.querySelector("#live");
const topics = new Set(main.dataset.topics.split(" ").filter(Boolean));
let latest = new DOMParser().parseFromString(document.documentElement.outerHTML, "text/html");
let timer = null;

const concerns = (changed) =>
  !changed.length || changed.some((topic) => topic === "everything" || topics.has(topic));

const open = (root) => [...root.querySelectorAll("details[open][id]")].map((it) => it.id);

function replace(part, fresh) {
  const focused = document.activeElement;
  const place = part.contains(focused) ? [...part.querySelectorAll("a, [tabindex]")].indexOf(focused) : -1;
  const opened = open(part);
  const nodes = document.importNode(fresh, true).childNodes;
  part.replaceChildren(...nodes);
  for (const id of opened) part.querySelector(`#${CSS.escape(id)}`)?.setAttribute("open", "");
  if (place >= 0) part.querySelectorAll("a, [tabindex]")[place]?.focus({ preventScroll: true });
}

async function refresh() {
  timer = null;
  if (document.hidden) return;
  const answer = await fetch(location.href, { redirect: "error" }).catch(() => null);
  if (!answer?.ok) return;
  const next = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const part of document.querySelectorAll("[data-live]")) {
    const [fresh, before] = [next, latest].map((page) => page.getElementById(part.id));
    if (fresh && fresh.innerHTML !== before?.innerHTML) replace(part, fresh);
  }
  document.title = next.title;
  latest = next;
}

// The server says how fast all open pages together may ask; chance keeps them apart.
const soon = (pace = 0) => { timer ??= setTimeout(refresh, PAUSE_MS + 2 * pace * Math.random()); };

function watch() {
  const stream = new EventSource(`${document.body.dataset.base}/stream`);
  stream.addEventListener("change", (event) => {
    say.textContent = "Live.";
    const [pace, ...changed] = event.data.split(" ");
    if (concerns(changed)) soon(Number(pace));
  });
  stream.addEventListener("error", () => {
    say.textContent = "Not live: the connection is lost.";
    if (stream.readyState === EventSource.CLOSED) setTimeout(watch, 15_000);
  });
}

if (topics.size && say) {
  watch();
  document.addEventListener("visibilitychange", () => soon());
}
