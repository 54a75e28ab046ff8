"use strict";
/* The server that gave this page: nothing else is ever asked. */

class Api {
  constructor() {
    this.key = "";
    // whose requests are whose: the live trace shows those that were sent with the same name
    this.viewer = Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
  }

  async fetch(path, options = {}) {
    const headers = { "X-Pellucid-Viewer": this.viewer, ...(options.headers || {}) };
    if (this.key) headers.Authorization = `Bearer ${this.key}`;
    if (options.body !== undefined) headers["Content-Type"] = "application/json";
    let answer;
    try {
      answer = await fetch(path, { ...options, headers, credentials: "omit", body: options.body === undefined ? undefined : JSON.stringify(options.body) });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw Object.assign(new Error(t("unreachable")), { isGone: true });
    }
    if (!answer.ok) {
      let said = { message: t("status", { status: answer.status }) };
      try { said = (await answer.json()).error; } catch { /* no JSON: the status is all there is */ }
      throw Object.assign(new Error(said.message), { status: answer.status, code: said.code });
    }
    return answer;
  }

  /** The objects of a stream of server-sent events. */
  async *events(path, options) {
    const answer = await this.fetch(path, options);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      let read;
      try {
        read = await reader.read();
      } catch (error) {
        if (error.name === "AbortError") throw error;
        throw Object.assign(new Error(t("broken_off")), { isGone: true });
      }
      const { done, value } = read;
      if (done) return;
      const parts = (rest + value).split(/\r?\n\r?\n/);
      rest = parts.pop();
      for (const part of parts) {
        const data = part.split(/\r?\n/).filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart()).join("\n");
        if (data && data !== "[DONE]") yield parseEvent(data);
      }
    }
  }
}
