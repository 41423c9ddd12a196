// The search runs in a worker, and browsers start none for a page that was opened as a file. There, a hidden frame takes its place.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      this.frame = frame;
      const inside = frame.contentWindow;
      window.addEventListener("message", event => {
        if (event.source !== inside) return;
        const copy = new MessageEvent("message", {data: event.data});
        this.dispatchEvent(copy);
        if (this.onmessage) this.onmessage(copy);
      });
      this.ready = new Promise((done, failed) => Object.assign(frame, {onload: done, onerror: failed}));
      inside.document.open();
      inside.document.write(`<script>
        // to the page, as a worker does
        window.postMessage = message => parent.postMessage(message, "*", []);
        window.importScripts = (...urls) => urls.reduce((before, url) => before.then(() => new Promise((done, failed) => {
          const script = Object.assign(document.createElement("script"), {src: url, onload: done, onerror: failed});
          document.body.appendChild(script);
        })), Promise.resolve());
      <\/script><body><script src="${new URL(url, location.href)}"><\/script></body>`);
      inside.document.close();
    }

    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", {data})));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
