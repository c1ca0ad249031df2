// Search runs in a worker, and browsers start none for pages that are opened from the file system. There this stands in
// for it: the worker's script in a hidden frame. On a server nothing changes.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      this.started = new Promise(started => {
        frame.onload = () => {
          const inside = frame.contentWindow, script = frame.contentDocument.createElement("script");
          inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }));
          script.src = url;
          script.onload = () => started(inside);
          frame.contentDocument.body.append(script);
        };
      });
      frame.hidden = true;
      frame.srcdoc = "<!doctype html><title>Search</title><body>";
      this.frame = frame;
      document.body.append(frame);
    }

    postMessage(data) {
      this.started.then(inside => inside.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
