// A client for a store that `ontologia serve --socket PATH` serves: one file, no dependency.
//
//   import { connect } from "./client.mjs";
//   const store = await connect("run/ontologia.sock");
//   await store.command("State.Ensure", { objects: [{ type: "Customer", fields: { id: "c1", tier: "gold" } }] });
//   const { objects } = await store.query("State.Query", { type: "Customer", where: [["tier", "=", "gold"]] });
//   store.close();
//
// Run by itself it sends one message and prints the answer:
//
//   node client.mjs run/ontologia.sock query State.Get '{"type": "Customer", "key": "c1"}'

import { randomUUID } from "node:crypto";
import net from "node:net";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

/** An answer of kind "error"; `code` is one of HTTP, `data` has a hint if there is one. */
export class AnswerError extends Error {
  constructor(type, data) {
    super(`${type}: ${data.message} (${data.code})`);
    this.code = data.code;
    this.data = data;
  }
}

/** Connect to a Unix socket; resolves to a Client. */
export function connect(path) {
  return new Promise((resolve, reject) => {
    const socket = net.createConnection(path, () => resolve(new Client(socket)));
    socket.once("error", reject);
  });
}

class Client {
  #socket;
  #waiting = new Map(); // id of a request -> how to settle its promise
  #ended; // why there is no connection any more

  constructor(socket) {
    this.#socket = socket;
    socket.on("error", (error) => this.#fail(error));
    socket.on("close", () => this.#fail(new Error("the connection was closed")));
    createInterface({ input: socket }).on("line", (line) => this.#answer(JSON.parse(line)));
  }

  /** Ask something; resolves to the data of the reply, or rejects with an AnswerError. */
  query(type, data = {}) {
    return this.#request("query", type, data);
  }

  /** Have something done; likewise. */
  command(type, data = {}) {
    return this.#request("command", type, data);
  }

  /** Tell those actors that subscribed; nobody answers. */
  event(type, data = {}) {
    this.#send("event", type, data);
  }

  close() {
    this.#socket.end();
  }

  #request(kind, type, data) {
    return new Promise((resolve, reject) => {
      if (this.#ended) throw this.#ended;
      this.#waiting.set(this.#send(kind, type, data), { resolve, reject });
    });
  }

  #send(kind, type, data) {
    const metadata = { id: randomUUID(), timestamp: Date.now() };
    this.#socket.write(JSON.stringify({ kind, type, data, metadata }) + "\n");
    return metadata.id;
  }

  #answer({ kind, type, data, metadata }) {
    const waiting = this.#waiting.get(metadata.causation);
    if (waiting === undefined) return;
    this.#waiting.delete(metadata.causation);
    if (kind === "reply") waiting.resolve(data);
    else waiting.reject(new AnswerError(type, data));
  }

  #fail(error) {
    this.#ended ??= error;
    for (const { reject } of this.#waiting.values()) reject(error);
    this.#waiting.clear();
  }
}

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) {
  const [path, kind, type, data = "{}"] = process.argv.slice(2);
  const client = await connect(path);
  try {
    console.log(JSON.stringify(await client[kind](type, JSON.parse(data))));
  } catch (error) {
    console.error(error.message);
    process.exitCode = 1;
  } finally {
    client.close();
  }
}
