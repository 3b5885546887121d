// Browsers start no worker for a page that was opened from a folder (file://), so the search would not work there.
// This stands in for `Worker`: the script runs in a hidden frame, and messages go both ways.
// As with a worker, the receiver gets a copy, after the call that sends has returned.
if (location.protocol === "file:") {
  const later = (data, receive) => {
    const copy = structuredClone(data);
    setTimeout(() => receive(copy));
  };
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = "<!doctype html><title>worker</title>";
      frame.addEventListener("load", () => this.begin(frame.contentWindow, new URL(url, location.href).href), { once: true });
      document.documentElement.append(frame);
      this.frame = frame;
    }
    begin(inner, url) {
      const { document: page } = inner;
      const add = (source) => new Promise((done) => {
        const script = page.createElement("script");
        script.src = source;
        script.onload = script.onerror = done;
        page.body.append(script);
      });
      inner.postMessage = (data) => later(data, (copy) => {
        const event = new MessageEvent("message", { data: copy });
        this.dispatchEvent(event);
        this.onmessage?.(event);
      });
      inner.importScripts = (...urls) => Promise.all(urls.map((each) => add(new URL(each, url).href)));
      add(url).then(() => {
        this.inner = inner;
        this.waiting.forEach((data) => this.deliver(data));
      });
    }
    deliver(data) {
      later(data, (copy) => {
        this.inner.dispatchEvent(new this.inner.MessageEvent("message", { data: copy }));
      });
    }
    postMessage(data) {
      this.inner ? this.deliver(data) : this.waiting.push(data);
    }
    terminate() {
      this.frame.remove();
    }
  };
}
