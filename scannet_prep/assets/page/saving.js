/** The dialog that saves the picture, and copies the link of the view or the command that draws it. */
class SaveDialog {
  constructor(viewer) {
    this.viewer = viewer;
    this.dialog = document.getElementById("saving");
    this.scale = document.getElementById("save-scale");
    this.legend = document.getElementById("save-legend");
    this.transparent = document.getElementById("save-transparent");
    this.status = document.getElementById("save-status");
    document.getElementById("save").addEventListener("click", () => this.#open());
    document.getElementById("save-picture").addEventListener("click", () => this.#save());
    document.getElementById("copy-link").addEventListener("click", () => this.#copy(this.#address, "Link"));
    document.getElementById("copy-command").addEventListener("click", () => this.#copy(this.#command, "Command"));
  }

  /** The address of the view. The page of a notebook has none, but `view --link` reads the part after `#`, too. */
  get #address() {
    return location.protocol === "about:" ? this.viewer.link : this.viewer.address;
  }

  get #fileName() {
    const { scene, coloring } = this.viewer;
    return `${scene.name || "scene"}_${coloring.name}.png`.replace(/[^\w.-]+/g, "_");
  }

  /** The command that draws the view of the first pane, as the saved picture does. A link contains no quotes and no blanks. */
  get #command() {
    const { viewer } = this;
    const words = [viewer.data.command, "--link", `'${viewer.firstLink}'`];
    words.push("--width", Math.round(this.scale.value * viewer.canvas.clientWidth * devicePixelRatio));
    if (!this.legend.checked) words.push("--legend", "none");
    if (this.transparent.checked) words.push("--background", "transparent");
    words.push("-o", this.#fileName);
    return words.join(" ");
  }

  #open() {
    const { canvas, coloring } = this.viewer;
    if (!coloring) return;
    for (const option of this.scale.options) {
      const [width, height] = [canvas.width, canvas.height].map((pixels) => Math.round(option.value * pixels));
      option.textContent = `${option.value} × (${width} × ${height} pixels)`;
    }
    this.legend.disabled = !coloring.categories.length;
    this.status.textContent = "";
    this.dialog.showModal();
  }

  async #save() {
    try {
      const figure = this.viewer.makeFigure({
        scale: Number(this.scale.value),
        hasLegend: this.legend.checked,
        isTransparent: this.transparent.checked,
      });
      const blob = await new Promise((resolve) => figure.toBlob(resolve));
      if (!blob) throw new Error("the browser cannot encode a picture of this size: choose a smaller one");
      const url = URL.createObjectURL(blob);
      Object.assign(document.createElement("a"), { href: url, download: this.#fileName }).click();
      setTimeout(() => URL.revokeObjectURL(url), 60_000);
      this.status.textContent = `Saved as ${this.#fileName}`;
    } catch (error) {
      this.status.textContent = error.message;
    }
  }

  async #copy(text, name) {
    const isCopied = await copyText(text, this.dialog);
    this.status.textContent = isCopied ? `${name} copied` : text;
  }
}

/** Copy a text. Pages in frames, and pages of other machines, may use only the older function. */
async function copyText(text, parent) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const box = Object.assign(document.createElement("textarea"), { value: text, className: "unseen" });
    parent.append(box);
    box.select();
    const isCopied = document.execCommand("copy");
    box.remove();
    return isCopied;
  }
}
