// Asks a model over OpenAI's API and prints the answer as it comes.
//
//     node examples/chat.mjs "Tell me of a king."
//
// Needs nothing but fetch: Node 18 or later, Deno, Bun.
import process from "node:process";

const url = process.env.OPENAI_BASE_URL ?? "http://127.0.0.1:8080/v1";
const key = process.env.OPENAI_API_KEY ?? "any";
const model = process.env.OPENAI_MODEL ?? "fable";
const tries = 4;

// openStream sends a request, again while the server is full and says when to come back.
async function openStream(body) {
  for (let left = tries - 1; ; left--) {
    const response = await fetch(url + "/chat/completions", {
      method: "POST",
      headers: { "Content-Type": "application/json", Authorization: "Bearer " + key },
      body: JSON.stringify(body),
    }).catch(() => {
      throw new Error(`no answer from ${url}: start a mesh with 'tandem up', or set OPENAI_BASE_URL`);
    });
    if (response.ok) return response.body;
    const text = await response.text();
    if (![429, 503].includes(response.status) || left === 0) {
      let message = text;
      try {
        message = JSON.parse(text).error.message;
      } catch {}
      throw new Error(`${response.status}: ${message}`);
    }
    const wait = Number(response.headers.get("retry-after-ms") ?? 1000);
    await new Promise((resume) => setTimeout(resume, wait));
  }
}

// events are the objects of a stream of server-sent events.
async function* events(stream) {
  const decoder = new TextDecoder();
  let rest = "";
  for await (const bytes of stream) {
    const lines = (rest + decoder.decode(bytes, { stream: true })).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line === "data: [DONE]") return;
      if (line.startsWith("data: ")) yield JSON.parse(line.slice("data: ".length));
    }
  }
  throw new Error("the answer broke off");
}

process.stdout.on("error", (error) => {
  if (error.code !== "EPIPE") throw error;
  process.exit(1); // nobody reads the answer any more
});

try {
  let usage;
  const stream = await openStream({
    model,
    messages: [{ role: "user", content: process.argv.slice(2).join(" ") || "Tell me of a king." }],
    max_tokens: 60,
    stream: true,
    stream_options: { include_usage: true },
  });
  for await (const event of events(stream)) {
    if (event.error) throw new Error(event.error.message); // after the first token a request fails here
    for (const choice of event.choices) process.stdout.write(choice.delta.content ?? "");
    usage = event.usage ?? usage;
  }
  console.log();
  console.error(`[${usage.prompt_tokens} prompt tokens, ${usage.completion_tokens} in the answer]`);
} catch (error) {
  console.error(error.cause ? "\nthe answer broke off" : error.message);
  process.exitCode = 1;
}
