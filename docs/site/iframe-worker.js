// Browsers start no worker for a page that is opened from a folder. There, a hidden frame runs the script of the search.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      this.frame = new Promise((ready) => {
        frame.onload = () => {
          const inside = frame.contentWindow;
          inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
          const script = inside.document.createElement("script");
          script.src = url;
          script.onload = () => ready(inside);
          inside.document.body.append(script);
        };
      });
      document.body.append(frame);
    }

    postMessage(data) {
      this.frame.then((inside) => inside.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
