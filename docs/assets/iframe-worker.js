// Browsers start no worker for a page that was opened from a folder (file://), so the search would not work there.
// This stands in for `Worker`: the script runs in a hidden frame, and messages go both ways.
if (location.protocol === "file:") {
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
      inner.postMessage = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        this.onmessage?.(event);
      };
      inner.importScripts = (...urls) => Promise.all(urls.map((each) => add(new URL(each, url).href)));
      add(url).then(() => {
        this.inner = inner;
        this.waiting.forEach((data) => this.deliver(data));
      });
    }
    deliver(data) {
      this.inner.dispatchEvent(new this.inner.MessageEvent("message", { data }));
    }
    postMessage(data) {
      this.inner ? this.deliver(data) : this.waiting.push(data);
    }
    terminate() {
      this.frame.remove();
    }
  };
}
