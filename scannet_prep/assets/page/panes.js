/** One to three panes side by side: the same scene from the same side, each in its own colouring, with one legend. */

const MAX_PANES = 3;

class Panes {
  #panes = [];
  #scene = null; // the arguments of the latest call of setScene
  #positions = null;

  /** @param viewer called by mouse and fingers on all panes. */
  constructor(viewer) {
    this.viewer = viewer;
    this.root = document.getElementById("panes");
    this.selects = [1, 2].map((number) => document.getElementById(`beside-${number}`));
    this.#add(viewer.canvas);
    this.shown = [...this.#panes];
    this.active = this.first; // the pane under the mouse
  }

  get first() {
    return this.#panes[0];
  }

  /** The names of the colourings that are chosen for the other panes. */
  get chosen() {
    return this.selects.map((select) => select.value).filter(Boolean);
  }

  /** Show this many panes. Panes are made when they are first needed, and then kept. */
  arrange(count) {
    while (this.#panes.length < count) {
      const root = Object.assign(document.createElement("div"), { className: "pane" });
      const canvas = document.createElement("canvas");
      // Everything that it shows is said for the first pane, too.
      canvas.ariaHidden = "true";
      root.append(canvas);
      this.root.append(root);
      const pane = this.#add(canvas);
      if (this.#scene) pane.drawing.setScene(...this.#scene);
    }
    this.#panes.forEach((pane, index) => {
      pane.root.hidden = index >= count;
      pane.caption.hidden = count < 2;
    });
    this.shown = this.#panes.slice(0, count);
    if (!this.shown.includes(this.active)) this.active = this.first;
  }

  /** Set the arrays of a scene, as in `Drawing.setScene`. */
  setScene(scene, positions, normals, corners) {
    this.#scene = [scene, positions, normals, corners];
    this.#positions = positions;
    for (const pane of this.#panes) pane.drawing.setScene(...this.#scene);
    for (const [index, select] of this.selects.entries()) {
      const none = new Option(index ? "no third picture" : "no second picture", "");
      select.replaceChildren(none, ...scene.colorings.map(({ name, title }) => new Option(`${name}: ${title}`, name)));
    }
  }

  /** Set the colouring of each pane, and its values. */
  setColorings(colorings, values) {
    this.shown.forEach((pane, index) => pane.setColoring(colorings[index], values[index]));
    this.selects.forEach((select, index) => (select.value = colorings[index + 1]?.name ?? ""));
    this.selects[1].hidden = colorings.length < 2;
  }

  /** Whether one of the panes shows a colouring. */
  shows(coloring) {
    return this.shown.some((pane) => pane.coloring === coloring);
  }

  /** Show all categories but one of the listing in faint colours; none if the number is null. */
  highlight({ numbers }, number, background) {
    // A pane without this category becomes faint as a whole.
    this.shown.forEach((pane, index) => {
      pane.highlight(number === null ? null : numbers[index].indexOf(number), background);
    });
  }

  /** Mark a vertex in all panes if there are several; -1 for none. */
  mark(vertex) {
    const { camera } = this.viewer;
    let point = null;
    if (vertex >= 0 && this.shown.length > 1) {
      const { origin, step } = this.#scene[0];
      point = origin.map((start, axis) => start + this.#positions[3 * vertex + axis] * step);
    }
    for (const pane of this.#panes) pane.mark(point, camera);
  }

  #add(canvas) {
    const pane = new Pane(canvas);
    this.#panes.push(pane);
    // Before the controls: they ask for the vertex under the mouse.
    for (const name of ["pointerenter", "pointerdown"]) canvas.addEventListener(name, () => (this.active = pane));
    new PointerControls(canvas, this.viewer);
    canvas.addEventListener("webglcontextlost", (event) => {
      // Otherwise, the browser never restores it.
      event.preventDefault();
      this.viewer.explainLostMemory();
    });
    // The address contains the view.
    canvas.addEventListener("webglcontextrestored", () => location.reload());
    return pane;
  }
}

const UNLABELED = "unlabeled";

/**
 * Combine the colourings of all panes into one listing. Categories of the same name and colour are one line; unlabeled is
 * the last one.
 * @returns name; categories, with the vertices of each pane that has categories as `counts`; `totals` of these; `tables`;
 *   and `numbers`, for each pane the number of the line of each of its categories.
 */
function combineColorings(colorings) {
  const keyOf = ({ name, color }) => `${color} ${name}`;
  const all = colorings.flatMap(({ categories }) => categories);
  const counted = colorings.filter(({ categories }) => categories.length);
  const lines = new Map();
  for (const isLast of [false, true]) {
    for (const category of all.filter(({ name }) => (name === UNLABELED) === isLast)) {
      if (lines.has(keyOf(category))) continue;
      lines.set(keyOf(category), { ...category, number: lines.size, notes: [], counts: counted.map(() => 0) });
    }
  }
  counted.forEach(({ categories }, pane) => {
    for (const category of categories) {
      const line = lines.get(keyOf(category));
      line.counts[pane] += category.count;
      if (category.note) line.notes.push(category.note);
    }
  });
  const isSingle = colorings.length === 1;
  const label = (table, title) => (isSingle ? table : { ...table, title: `${table.title} (${title})` });
  return {
    name: colorings.map(({ name }) => name).join(" "),
    categories: [...lines.values()],
    totals: counted.map(({ categories }) => categories.reduce((sum, { count }) => sum + count, 0)),
    tables: colorings.flatMap(({ tables, title }) => tables.map((table) => label(table, title))),
    numbers: colorings.map(({ categories }) => categories.map((category) => lines.get(keyOf(category)).number)),
  };
}
