/** The vertex that a click has selected, its group, and the panel that describes them. */
class Selection {
  vertex = -1;
  other = -1; // the vertex to which the distance is measured
  group = null; // the category that is outlined: {coloring, number}
  isMeasuring = false; // whether the next click selects the other vertex
  #rows = [];

  constructor(viewer) {
    this.viewer = viewer;
    this.panel = document.getElementById("selection");
    this.list = document.getElementById("selection-rows");
    this.measureButton = document.getElementById("measure");
    const listen = (id, action) => document.getElementById(id).addEventListener("click", action);
    listen("show-only", () => viewer.showOnly(this.group));
    listen("copy", () => this.#copy());
    listen("centre", () => viewer.centreOn(this.vertex));
    listen("measure", () => this.#setMeasuring(!this.isMeasuring));
    listen("unselect", () => this.clear());
  }

  get isEmpty() {
    return this.vertex < 0;
  }

  /** Select a vertex, or the other end of a distance, if that was asked for. */
  async pick(vertex, isOther = this.isMeasuring) {
    const { viewer } = this;
    const { scene } = viewer;
    const isNew = this.isEmpty || !isOther;
    const group = isNew ? await findGroup(scene, viewer.panes.active.coloring, vertex) : this.group;
    if (scene !== viewer.scene) return;
    if (isNew) Object.assign(this, { vertex, group, other: -1 });
    else this.other = vertex;
    this.#setMeasuring(false);
    await this.#describe(scene);
    viewer.selected();
  }

  clear() {
    if (this.isEmpty) return;
    Object.assign(this, { vertex: -1, other: -1, group: null });
    this.#setMeasuring(false);
    this.panel.hidden = true;
    this.viewer.selected();
  }

  /** Return both ends of the measured distance, in metres; null if there is none. */
  async measured() {
    if (this.other < 0) return null;
    const { scene } = this.viewer;
    return Promise.all([scene.point(this.vertex), scene.point(this.other)]);
  }

  async #describe(scene) {
    const rows = await scene.describe(this.vertex);
    if (this.group) {
      const { coloring, number } = this.group;
      const { low, high } = await scene.box(coloring, number);
      const size = high.map((at, axis) => (at - low[axis]).toFixed(2));
      rows.push(["outlined", coloring.categories[number].name]);
      rows.push(["vertices", String(coloring.categories[number].count)]);
      rows.push(["size", `${size.join(" × ")} m`]);
      rows.push(["box", `${formatPoint(low)} to ${formatPoint(high)} m`]);
    }
    const ends = await this.measured();
    if (ends) rows.push(["distance", `${Math.hypot(...ends[0].map((at, axis) => at - ends[1][axis])).toFixed(3)} m`]);
    if (scene !== this.viewer.scene) return;
    this.#rows = rows;
    this.list.replaceChildren(...makeRows(rows));
    document.getElementById("show-only").disabled = !this.group;
    this.panel.hidden = false;
  }

  #setMeasuring(isMeasuring) {
    this.isMeasuring = isMeasuring;
    this.measureButton.ariaPressed = String(isMeasuring);
  }

  async #copy() {
    const isCopied = await copyText(this.#rows.map((pair) => pair.join(": ")).join("\n"), this.panel);
    document.getElementById("announcement").textContent = isCopied ? "copied" : "The browser does not let this page copy.";
  }
}

/**
 * Find the group of a vertex: its instance or segment in a colouring, otherwise its instance, otherwise its
 * segment.
 * @returns {Promise<?{coloring: object, number: number}>}
 */
async function findGroup(scene, first, vertex) {
  for (const coloring of [first, scene.coloring("instances"), scene.coloring("segments")]) {
    if (!coloring?.isPerScene) continue;
    const number = (await scene.values(coloring))[vertex];
    if (coloring.categories[number].name !== "unlabeled") return { coloring, number };
  }
  return null;
}
