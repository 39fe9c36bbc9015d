// The "Send" buttons of /docs: sends one request with this browser's session and shows status, headers and body.
// Everything that is shown is set as text, never as HTML.
"use strict";

const SHOWN_MAX = 500_000; // characters; a stream may go on for ever

for (const form of document.querySelectorAll("form.try")) {
  form.hidden = false;
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send(form);
  });
}

async function send(form) {
  const [stop, status, headers, body] = [".stop", ".status", ".headers", ".body"].map((one) => form.querySelector(one));
  const controller = new AbortController();
  stop.onclick = () => controller.abort();
  stop.hidden = false;
  form.querySelector(".answer").hidden = false;
  status.textContent = "…";
  headers.textContent = body.textContent = "";
  try {
    const answer = await fetch(address(form), { ...asked(form), signal: controller.signal });
    status.textContent = `${answer.status} ${answer.statusText}`.trim();
    headers.textContent = [...answer.headers].map(([name, value]) => `${name}: ${value}`).join("\n");
    await show(answer, body);
  } catch (error) {
    status.textContent += error.name === "AbortError" ? " (stopped)" : ` no answer: ${error.message}`;
  } finally {
    stop.hidden = true;
  }
}

function given(form, kind) {
  const fields = [...form.querySelectorAll(`[data-in="${kind}"]`)];
  return fields.map((field) => [field.name, field.value.trim(), field]).filter(([, value]) => value);
}

function address(form) {
  let path = form.dataset.path;
  for (const [name, value] of given(form, "path")) path = path.replace(`{${name}}`, () => encodeURIComponent(value));
  const query = new URLSearchParams(given(form, "query").map(([name, value]) => [name, value]));
  return query.size ? `${path}?${query}` : path;
}

function asked(form) {
  const headers = new Headers(given(form, "header").map(([name, value]) => [name, value]));
  if (form.dataset.key === "required" && !headers.has("Idempotency-Key")) headers.set("Idempotency-Key", anyKey());
  const body = form.querySelector("textarea")?.value;
  if (body?.trim()) headers.set("Content-Type", "application/json");
  return { method: form.dataset.method, headers, body: body?.trim() ? body : undefined, redirect: "manual" };
}

function anyKey() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

async function show(answer, body) {
  const json = /[/+]json/.test(answer.headers.get("content-type") ?? "");
  const reader = answer.body?.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (let part; reader && !(part = await reader.read()).done; ) {
    text += part.value;
    if (text.length > SHOWN_MAX) {
      await reader.cancel();
      body.textContent = `${text.slice(0, SHOWN_MAX)}\n… (the rest is not shown)`;
      return;
    }
    if (!json) body.textContent = text; // a stream is shown as it comes
  }
  body.textContent = json ? indented(text) : text;
}

// JSON with line breaks. It is not parsed: 1.0 would come back as 1, and a large integer rounded.
function indented(text) {
  let depth = 0;
  const line = () => "\n" + "  ".repeat(depth);
  return text.replace(/"(?:[^"\\]|\\.)*"|[{[]\s*[}\]]|[{}[\],:]|\s+/g, (part) => {
    if (part[0] === '"' || part.length > 1 && /[{[]/.test(part[0])) return part;
    if (part === "{" || part === "[") return depth++, part + line();
    if (part === "}" || part === "]") return depth--, line() + part;
    if (part === ",") return part + line();
    return part === ":" ? ": " : "";
  });
}
