/** The page of a scene: its legend and controls. It follows drawing.js in the same script. */

// Types of arrays, by the bytes of a number.
const TYPES = { 1: Uint8Array, 2: Uint16Array, 4: Int32Array };
// Browsers allow only a few changes of the address per second.
const STORE_DELAY_MS = 300;
// The mouse has to rest this long: to find the vertex below it, the scene is drawn.
const HOVER_DELAY_MS = 60;
// A longer legend ends with the number of its other lines.
const MAX_LINES = 400;
// The first view is fitted to about this many of the vertices.
const FITTED_POINTS = 4000;
// The tooltip also has these colourings, if they are not shown.
const NAMED = /^(instances|prediction)/;
const NUMBER = /^(-|[\d.,]+( %)?)$/;
const FAINT = 150;
// The settings of the drawing: sliders and checkboxes.
const SETTINGS = document.querySelectorAll("#tools input");

/** Find an element of the page. */
function $(id) {
  return document.getElementById(id);
}

/** The page. Its colourings are those of the data, with their values; categories may be hidden. */
class Viewer {
  shown = []; // the colourings of the panes
  #boxes = new Map(); // the checkboxes of the legend, by the key of their line
  #lines = new Map(); // the categories of all lines by key, see `#findLines`
  #highlighted = null; // the key of a line
  #isFitted = false; // whether the camera shows the whole scene, and has not been moved since
  #storeTimer = 0;
  #hoverTimer = 0;

  constructor(data, arrays) {
    this.data = data;
    for (const coloring of data.colorings) {
      for (const category of coloring.categories) category.key = category.line ?? category.name;
      coloring.values = arrays[`color-${coloring.name}`];
    }
    const { steps, faces: corners = new Int32Array(0) } = arrays;
    sumSteps(steps);
    sumCorners(corners);
    this.steps = steps;
    this.drawing = new Drawing($("picture"), {
      ...data,
      steps,
      normals: arrays["color-normals"],
      corners,
    });
    this.#listen();
    this.follow(location.hash);
  }

  /** The number of vertices. */
  get vertexCount() {
    return this.steps.length / 3;
  }

  /** Return the position of a vertex, in metres. */
  positionOf(vertex) {
    return this.data.origin.map((at, axis) => at + this.data.step * this.steps[3 * vertex + axis]);
  }

  /** Show one or two colourings, by name. */
  show(names) {
    const { colorings } = this.data;
    const known = names.flatMap((name) => colorings.filter((each) => each.name === name));
    this.shown = known.length ? known.slice(0, 2) : [colorings[0]];
    document.querySelector(`#colorings [value="${this.shown[0].name}"]`).checked = true;
    $("beside").value = this.shown[1]?.name ?? "";
    $("captions").replaceChildren(...this.shown.map(({ title }) => make("p", title)));
    const isNamed = this.shown.length > 1;
    $("tables").replaceChildren(...this.shown.flatMap((each) => makeTables(each, isNamed)));
    this.#lines = this.#findLines();
    this.#listLines();
    this.recolor();
    this.#refit();
  }

  /** Colour all vertices of the panes. */
  recolor() {
    const others = this.data.colorings.filter((each) => !this.shown.includes(each));
    const isShown = findShown(others, this.vertexCount);
    const panes = this.shown.map((coloring) => ({
      colors: makeColors(coloring, isShown, this.#highlighted),
      isMixed: !coloring.categories.length,
    }));
    this.drawing.setPanes(panes);
    $("all").disabled = !this.data.colorings.some(hidesSome);
    this.#store();
  }

  /** The view, as the part of an address after `#`. */
  get link() {
    const { target, distance, azimuth, elevation, isPlan } = this.drawing.camera;
    const numbers = [...target, distance, azimuth, elevation, Number(isPlan)];
    const words = new URLSearchParams();
    for (const { name } of this.shown) words.append("color", name);
    words.set("view", numbers.map((number) => Number(number.toFixed(3))));
    for (const { name, categories } of this.data.colorings) {
      const hidden = categories.filter(({ isHidden }) => isHidden);
      const shown = categories.filter(({ isHidden }) => !isHidden);
      // The shorter list.
      const isOnly = shown.length < hidden.length;
      const word = `${isOnly ? "only" : "hide"}.${name}`;
      for (const category of isOnly ? shown : hidden) words.append(word, category.name);
      if (isOnly && !shown.length) words.set(word, "");
    }
    for (const { id, value, checked, defaultValue, defaultChecked } of SETTINGS) {
      if (checked !== defaultChecked) words.set(id, checked);
      else if (value !== defaultValue) words.set(id, value);
    }
    return `#${words}`;
  }

  /** Show the view of a link; what it does not contain is as at the start. */
  follow(link) {
    const words = new URLSearchParams(link.slice(1));
    for (const { name, categories } of this.data.colorings) {
      const only = new Set(words.getAll(`only.${name}`));
      const hidden = new Set(words.getAll(`hide.${name}`));
      for (const category of categories) {
        category.isHidden = only.size ? !only.has(category.name) : hidden.has(category.name);
      }
    }
    for (const setting of SETTINGS) {
      const text = words.get(setting.id);
      setting.checked = text ? text === "true" : setting.defaultChecked;
      setting.value = text ?? setting.defaultValue;
    }
    const colors = words.getAll("color");
    this.show(colors.length ? colors : [this.data.color, this.data.beside]);
    this.#applySettings();
    this.select(-1);
    const numbers = (words.get("view") ?? "").split(",").map(Number);
    if (numbers.length === 7 && numbers.every(Number.isFinite) && numbers[3] > 0) {
      const [x, y, z, distance, azimuth, elevation, isPlan] = numbers;
      const view = { target: [x, y, z], distance, azimuth, elevation, isPlan: isPlan === 1 };
      Object.assign(this.drawing.camera, view);
      this.#changed(false);
    } else this.#fit(false);
  }

  /** Store the view in the address, but not at once. */
  #store() {
    clearTimeout(this.#storeTimer);
    // The page of a notebook has no address.
    if (location.protocol === "about:") return;
    this.#storeTimer = setTimeout(() => history.replaceState(null, "", this.link), STORE_DELAY_MS);
  }

  /** Find the lines of the legend: of each key, the category in each pane, if there is one. */
  #findLines() {
    const lines = new Map();
    this.shown.forEach(({ categories }, pane) => {
      for (const category of categories) {
        const line = lines.get(category.key) ?? [];
        line[pane] = category;
        lines.set(category.key, line);
      }
    });
    const { unlabeled } = this.data;
    const last = lines.get(unlabeled);
    if (last && lines.delete(unlabeled)) lines.set(unlabeled, last);
    return lines;
  }

  /** List the lines of the legend that match the search. */
  #listLines() {
    const search = $("search").value.toLowerCase();
    const isFound = (text) => text.toLowerCase().includes(search);
    const found = [...this.#lines].filter(
      ([key, line]) => isFound(key) || line.some(({ name }) => isFound(name)),
    );
    this.#boxes.clear();
    const items = found.slice(0, MAX_LINES).map(([key, line]) => this.#makeLine(key, line));
    const left = found.length - items.length;
    if (left) items.push(make("li", `and ${left.toLocaleString("en")} more: search for them`));
    $("categories").replaceChildren(...items);
    this.#updateBoxes();
  }

  /** Make a line of the legend. */
  #makeLine(key, line) {
    const item = $("line").content.firstElementChild.cloneNode(true);
    const [checkbox, swatch, text, first, second, only] = item.querySelectorAll(
      "input, i, b, small, button",
    );
    const found = line.filter(Boolean);
    const [category] = found;
    swatch.style.background = `rgb(${category.color})`;
    const isSingle = this.shown.length === 1;
    text.textContent = isSingle ? category.name : key;
    const share = (each) => each && formatShare(each.count / this.vertexCount);
    first.textContent = isSingle ? category.note ?? "" : line[0]?.note || share(line[0]);
    second.textContent = isSingle ? share(category) : line[1]?.note || share(line[1]);
    checkbox.addEventListener("change", () => {
      for (const each of found) each.isHidden = !checkbox.checked;
      this.recolor();
    });
    only.addEventListener("click", () => {
      this.#hide(this.shown, (each) => !found.includes(each));
    });
    item.addEventListener("focusin", ({ target }) => {
      if (target.matches(":focus-visible")) this.#highlight(key);
    });
    item.addEventListener("pointerenter", ({ pointerType }) => {
      if (pointerType === "mouse") this.#highlight(key);
    });
    this.#boxes.set(key, checkbox);
    return item;
  }

  /** Hide those categories of some colourings for which a function returns true. */
  #hide(colorings, isHidden) {
    for (const each of colorings.flatMap(({ categories }) => categories)) {
      each.isHidden = isHidden(each);
    }
    this.#updateBoxes();
    this.recolor();
  }

  /** Tick the checkboxes of the lines that are shown in the picture. */
  #updateBoxes() {
    for (const [key, checkbox] of this.#boxes) {
      checkbox.checked = !this.#lines.get(key).some((category) => category?.isHidden);
    }
  }

  /** Fade all lines but one; null for none. */
  #highlight(key) {
    if (this.#highlighted === key) return;
    this.#highlighted = key;
    this.recolor();
  }

  /** Return what a vertex is in some colourings: pairs of a title and a name. */
  describe(vertex, colorings) {
    const rows = colorings.map(({ title, categories, values }) => {
      const { name, note } = categories[values[vertex]] ?? {};
      return [title, note ? `${name}, ${note}` : name];
    });
    return rows.filter(([, name]) => name);
  }

  /** Describe a vertex, and draw a box around its object in a pane; -1 for none. */
  select(vertex, pane) {
    const { drawing, data } = this;
    drawing.box = null;
    drawing.draw();
    $("selection").hidden = vertex < 0;
    if (vertex < 0) return;
    const rows = this.describe(vertex, data.colorings);
    const coloring = [...this.shown.slice(pane), ...data.colorings].find((each) => each.isPerScene);
    const value = coloring?.values[vertex];
    if (coloring && coloring.categories[value].name !== data.unlabeled) {
      drawing.box = findBox(this.steps, (other) => coloring.values[other] === value);
      const { low, high } = drawing.box;
      const size = high.map((at, axis) => (at - low[axis]) * data.step);
      rows.push(["size", `${formatMetres(size, " × ")} m`]);
    }
    rows.push(["x, y, z", `${formatMetres(this.positionOf(vertex), ", ")} m`], ["vertex", vertex]);
    $("selection-rows").replaceChildren(...makeRows(rows));
  }

  /** Show the names of the vertex under the mouse beside it. */
  #hover(event) {
    const vertex = this.drawing.pick(event);
    if (vertex < 0) return;
    const isNamed = (coloring) => this.shown.includes(coloring) || NAMED.test(coloring.name);
    const rows = this.describe(vertex, this.data.colorings.filter(isNamed));
    const tooltip = $("tooltip");
    tooltip.replaceChildren(...makeRows(rows));
    tooltip.hidden = !rows.length;
    const left = Math.min(event.clientX + 14, innerWidth - tooltip.offsetWidth);
    const top = Math.min(event.clientY + 14, innerHeight - tooltip.offsetHeight);
    Object.assign(tooltip.style, { left: `${left}px`, top: `${top}px` });
  }

  /** Hide the tooltip, and forget the last place of the mouse. */
  #endHover() {
    clearTimeout(this.#hoverTimer);
    $("tooltip").hidden = true;
  }

  /** Draw with the current settings. */
  #applySettings() {
    this.drawing.view = {
      hasMesh: $("mesh").checked,
      hasBacks: $("backs").checked,
      pointSize: this.data.spacing * $("size").value,
      ceiling: $("ceiling").valueAsNumber,
    };
    this.#changed(this.#isFitted);
  }

  /** Draw and store a changed view; another vertex may be under the mouse. */
  #changed(isFitted) {
    this.#isFitted = isFitted;
    this.#endHover();
    this.drawing.draw(true);
    this.#store();
  }

  /** Show the whole scene. */
  #fit(isPlan) {
    const { camera, paneSize } = this.drawing;
    const middle = add(this.data.origin, [0.5, this.data.size]);
    const every = Math.ceil(this.vertexCount / FITTED_POINTS);
    const points = [];
    for (let i = 0; i < this.vertexCount; i += every) points.push(this.positionOf(i));
    // A canvas that is not shown yet has no size.
    camera.fit(points, middle, paneSize[0] / paneSize[1] || 1, isPlan);
    this.#changed(true);
  }

  /** Show the whole scene again, in panes of another size. */
  #refit() {
    if (this.#isFitted) this.#fit(this.drawing.camera.isPlan);
  }

  /** Save the picture; its background is transparent. */
  #save() {
    this.drawing.draw();
    this.drawing.drawNow();
    const names = [this.data.name, ...this.shown.map(({ name }) => name)];
    const link = document.createElement("a");
    link.href = this.drawing.canvas.toDataURL();
    link.download = `${names.join("_")}.png`;
    link.click();
  }

  /** Turn about the vertex at a position from now on. */
  #centre(event) {
    const vertex = this.drawing.pick(event);
    if (vertex < 0) return;
    this.drawing.camera.target = this.positionOf(vertex);
    this.#changed(false);
  }

  /** Listen to the canvas and to all controls. */
  #listen() {
    const { drawing } = this;
    const { canvas } = drawing;
    listenToCamera(
      drawing,
      () => this.#changed(false),
      (event) => this.select(drawing.pick(event), drawing.locate(event).index),
    );
    canvas.addEventListener("dblclick", (event) => this.#centre(event));
    canvas.addEventListener("pointermove", (event) => {
      this.#endHover();
      // A finger moves only while it touches.
      if (event.buttons) return;
      this.#hoverTimer = setTimeout(() => this.#hover(event), HOVER_DELAY_MS);
    });
    canvas.addEventListener("pointerleave", () => this.#endHover());
    canvas.addEventListener("keydown", ({ key }) => {
      const [width, height] = drawing.paneSize;
      const middle = { offsetX: width / 2, offsetY: height / 2 };
      if (key === "Enter") this.select(drawing.pick(middle));
    });
    addEventListener("keydown", ({ key }) => {
      if (key === "Escape") this.select(-1);
    });
    canvas.addEventListener("webglcontextlost", () => {
      tell("The graphics card was reset, or too many scenes are open. The picture will return.");
    });
    canvas.addEventListener("webglcontextrestored", () => tell(""));
    $("tools").addEventListener("input", () => this.#applySettings());
    for (const id of ["colorings", "beside"]) {
      $(id).addEventListener("change", () => {
        this.show([document.querySelector("#colorings :checked").value, $("beside").value]);
      });
    }
    $("search").addEventListener("input", () => this.#listLines());
    // Lines are made anew under the mouse, so that it may never leave one.
    for (const end of ["pointerleave", "focusout"]) {
      $("categories").addEventListener(end, () => this.#highlight(null));
    }
    $("all").addEventListener("click", () => this.#hide(this.data.colorings, () => false));
    $("unselect").addEventListener("click", () => this.select(-1));
    $("top-view").addEventListener("click", () => this.#fit(!drawing.camera.isPlan));
    $("first-view").addEventListener("click", () => this.follow(""));
    $("save").addEventListener("click", () => this.#save());
    addEventListener("resize", () => this.#refit());
    // Otherwise, Firefox prints an empty picture.
    addEventListener("beforeprint", () => drawing.drawNow());
    addEventListener("hashchange", () => this.follow(location.hash));
  }
}

/** Show a message over the picture; none if the text is empty. */
function tell(text) {
  $("trouble").textContent = text;
}

/** Format lengths in metres. */
function formatMetres(lengths, separator) {
  return lengths.map((length) => length.toFixed(2)).join(separator);
}

/** Format a share of the vertices. */
function formatShare(share) {
  return share < 0.001 ? "< 0.1 %" : `${(100 * share).toFixed(1)} %`;
}

/** Make an element. Texts come from files, so they are set as text, never as markup. */
function make(tag, textContent) {
  return Object.assign(document.createElement(tag), { textContent });
}

/** Make terms and descriptions. */
function makeRows(rows) {
  return rows.flatMap(([name, text]) => [make("dt", name), make("dd", text)]);
}

/** Make the tables of a colouring, which open on a click. If there are several, titles name it. */
function makeTables(coloring, isNamed) {
  return coloring.tables.map(({ title, columns, rows }, index) => {
    const details = make("details");
    details.open = !index;
    const table = make("table");
    for (const texts of [columns, ...rows]) {
      const row = table.insertRow();
      texts.forEach((text, column) => {
        const cell = row.insertCell();
        cell.textContent = text;
        // The first row has the titles.
        if (rows.every((each) => NUMBER.test(each[column]))) cell.className = "number";
      });
    }
    const text = isNamed ? `${title}; ${coloring.title}` : title;
    details.append(make("summary", text), table);
    return details;
  });
}

/** Unpack an array of the page: base64 of deflate, the first bytes of all numbers first. */
async function unpack(name, width) {
  const packed = decodeBase64($(`array-${name}`).textContent);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  const planes = new Uint8Array(await new Response(stream).arrayBuffer());
  const count = planes.length / width;
  const bytes = new Uint8Array(planes.length);
  for (let plane = 0; plane < width; plane++) {
    for (let i = 0; i < count; i++) bytes[width * i + plane] = planes[plane * count + i];
  }
  return new TYPES[width](bytes.buffer);
}

/** Decode base64. */
function decodeBase64(text) {
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
  return bytes;
}

/** Make positions from differences: each is stored as the difference from the one before. */
function sumSteps(steps) {
  for (let i = 3; i < steps.length; i++) steps[i] += steps[i - 3];
}

/** Make corners from differences: the first from that of the triangle before, others from it. */
function sumCorners(corners) {
  for (let i = 0; i < corners.length; i += 3) {
    if (i) corners[i] += corners[i - 3];
    corners[i + 1] += corners[i];
    corners[i + 2] += corners[i];
  }
}

/** Return the box of the vertices that a function accepts, in steps. */
function findBox(steps, includes) {
  const low = [Infinity, Infinity, Infinity];
  const high = [-Infinity, -Infinity, -Infinity];
  for (let vertex = 0; 3 * vertex < steps.length; vertex++) {
    if (!includes(vertex)) continue;
    for (let axis = 0; axis < 3; axis++) {
      const at = steps[3 * vertex + axis];
      if (at < low[axis]) low[axis] = at;
      if (at > high[axis]) high[axis] = at;
    }
  }
  return { low, high };
}

/** Whether a colouring hides a category. */
function hidesSome({ categories }) {
  return categories.some(({ isHidden }) => isHidden);
}

/** Find the vertices that none of some colourings hides, uint8 (V,). */
function findShown(colorings, count) {
  const isShown = new Uint8Array(count).fill(1);
  for (const { categories, values } of colorings.filter(hidesSome)) {
    const isHidden = categories.map((category) => category.isHidden);
    for (let vertex = 0; vertex < count; vertex++) {
      if (isHidden[values[vertex]]) isShown[vertex] = 0;
    }
  }
  return isShown;
}

/** Return colours, one number per vertex: 0 if hidden. All lines but the highlighted one fade. */
function makeColors({ categories, values }, isShown, highlighted) {
  const pack = (red, green, blue) => red | (green << 8) | (blue << 16) | (255 << 24);
  const palette = categories.map(({ key, color, isHidden }) => {
    const isFaint = highlighted !== null && highlighted !== key;
    const parts = color.map((part) => (isFaint ? 0.2 * part + 0.8 * FAINT : part));
    return isHidden ? 0 : pack(...parts);
  });
  const colors = new Uint32Array(isShown.length);
  for (let vertex = 0; vertex < colors.length; vertex++) {
    if (!isShown[vertex]) continue;
    const at = 3 * vertex;
    colors[vertex] = palette.length
      ? palette[values[vertex]]
      : pack(values[at], values[at + 1], values[at + 2]);
  }
  return colors;
}

/** Unpack the scene, and show it. */
async function start() {
  const data = JSON.parse($("data").textContent);
  const arrays = {};
  for (const [name, width] of Object.entries(data.widths)) arrays[name] = await unpack(name, width);
  window.viewer = new Viewer(data, arrays);
}

start().catch((error) => tell(`This browser cannot show the scene: ${error.message}.`));
