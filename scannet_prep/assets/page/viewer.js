/** The viewer: it holds the scene, the view and the options, and connects them to the controls of the page. */

const $ = (id) => document.getElementById(id);
// Browsers allow only a few changes of the address per second.
const LINK_DELAY_MS = 300;
// A camera that has not moved for so long stands still.
const SETTLE_MS = 200;
// The wheel turns on if it turns again within this time.
const ANCHOR_MS = 400;
// Without a graphics card, scenes of more vertices are drawn in less detail while the camera moves.
const DRAFT_VERTICES = 30_000;

class Viewer {
  coloring = null;
  scene = null;
  beside = []; // names of the colourings of the panes beside the first one, if the scene has them
  listing = null; // what the legend lists, see combineColorings
  hidden = new Set(); // the numbers of the listed categories that are hidden
  #isDue = false;
  #isPointDue = false;
  #pointed = { x: 0, y: 0, vertex: -1, isInside: false };
  #anchor = { x: 0, y: 0, time: 0, point: null };
  #linkTimer = 0;
  #scale = 1; // of the picture; larger while it is saved
  #isDraft = false;
  #isLoading = false; // whether the picture still shows an older scene or colouring
  #settleTimer = 0;
  #statesTask = 0; // number of the latest request for states of vertices
  #task = 0; // number of the latest request for a scene or a colouring

  constructor(data) {
    this.data = data;
    this.scenes = data.scenes.map((description) => new Scene(description));
    this.canvas = $("picture");
    this.panes = new Panes(this);
    this.camera = new Camera(data.camera);
    this.tooltip = new Tooltip();
    this.frameMarks = new FrameMarks();
    this.overlay = new Overlay();
    this.selection = new Selection(this);
    this.clip = new ClipBox(() => this.#limitsChanged());
    this.visibility = new Visibility();
    this.legend = new Legend(() => this.#switched(), (number) => this.#highlight(number));
    this.options = {
      points: { value: 1, start: 1 },
      ceiling: { value: Infinity, start: Infinity }, // metres above the floor
      mesh: { value: true, start: true },
      grid: { value: false, start: false },
      backs: { value: false, start: false },
      cameras: { value: true, start: true },
      edges: { value: true, start: true }, // eye-dome lighting
      boxes: { value: false, start: false },
      ortho: { value: false, start: false },
      light: { value: false, start: matchMedia("(prefers-color-scheme: light)").matches },
    };
    this.view = { light: new Float32Array(3) };
    new SaveDialog(this);
    this.#listen();
    listenToKeys(this);
  }

  /** The view, as the part of an address after `#`. */
  get link() {
    return writeLink(this);
  }

  /** The view of the first pane alone, for a picture of the command, which has a light background by default. */
  get firstLink() {
    const { scene, coloring, visibility, aspect } = this;
    const options = { ...this.options, light: { value: this.options.light.value, start: true } };
    return writeLink({ ...this, aspect, options, beside: [], listing: coloring, hidden: visibility.hidden(scene, coloring) });
  }

  /** The drawing of the first pane. */
  get drawing() {
    return this.panes.first.drawing;
  }

  /** The address of the page with the view. */
  get address() {
    return location.href.replace(/#.*/, "") + this.link;
  }

  /** The width of the picture divided by its height. */
  get aspect() {
    for (const pane of this.panes.shown) pane.resize(this.#scale);
    return this.canvas.width / this.canvas.height;
  }

  /** Show the view of a link, with defaults for all that it does not contain. */
  async follow(text) {
    const link = readLink(text);
    this.selection.clear();
    for (const [name, option] of Object.entries(this.options)) option.value = link.options[name] ?? option.start;
    this.beside = link.color || link.beside.length ? link.beside : this.data.beside;
    await this.open(this.scenes.find((scene) => scene.name === link.scene) ?? this.scenes[0], link.color, link);
  }

  /** Show a scene in the same colouring, if it has that, and in the view of a link, if one is given. */
  async open(scene, colorName = this.coloring?.name, link = null) {
    const task = ++this.#task;
    this.#isLoading = true;
    this.canvas.ariaBusy = "true";
    const colorings = this.#colorings(scene, colorName);
    // The values are decoded at the same time, and needed later.
    const values = colorings.map((coloring) => scene.values(coloring));
    const [positions, normals, corners] = await Promise.all([scene.positions(), scene.normals(), scene.corners(), ...values]);
    if (task !== this.#task) return;
    this.panes.arrange(colorings.length);
    if (scene !== this.scene) {
      this.panes.setScene(scene, positions, normals, corners);
      this.scene = scene;
      this.positions = positions;
      this.coloring = null;
      // Without a colouring, there is no view to write into the address.
      clearTimeout(this.#linkTimer);
      this.pointAway();
      this.selection.clear();
      this.clip.setScene(scene);
      this.#describeScene();
      this.camera.isOrthographic = this.options.ortho.value;
      this.camera.reset(scene, positions, this.aspect);
    }
    if (link) {
      this.camera.isOrthographic = this.options.ortho.value;
      this.clip.reset();
      if (link.clip) this.clip.numbers = link.clip;
      if (link.view) {
        Object.assign(this.camera, link.view);
        // These keep angle and distance within their limits.
        this.camera.orbit(0, 0);
        this.camera.zoom(1);
      } else this.camera.reset(scene, positions, this.aspect);
      this.#showOptions();
    }
    await this.color(colorings[0].name, link);
  }

  /** Show a colouring of the scene in the first pane; the others keep theirs. */
  async color(name, link = null) {
    const task = ++this.#task;
    this.#isLoading = true;
    this.canvas.ariaBusy = "true";
    const colorings = this.#colorings(this.scene, name);
    const values = await Promise.all(colorings.map((coloring) => this.scene.values(coloring)));
    if (task !== this.#task) return;
    const coloring = colorings[0];
    this.coloring = coloring;
    this.values = values[0];
    this.listing = combineColorings(colorings);
    this.panes.arrange(colorings.length);
    this.panes.setColorings(colorings, values);
    if (link) this.#hideByLink(link);
    else this.#listHidden();
    this.legend.show(this.listing, this.hidden);
    for (const input of $("colorings").querySelectorAll("input")) input.checked = input.value === name;
    this.canvas.ariaLabel = `${this.scene.name}, coloured by ${coloring.title}`;
    await this.#showStates();
    if (task !== this.#task) return;
    this.#isLoading = false;
    this.cameraMoved();
  }

  /** Show up to two colourings beside the first one, by name. */
  async showBeside(names) {
    const before = this.aspect;
    this.beside = names;
    await this.color(this.coloring.name);
    // Keep what is visible from left to right.
    this.camera.zoom(Math.max(1, before) / Math.max(1, this.aspect));
    this.moved();
  }

  /** Draw soon, and write the view into the address once it stops changing. */
  moved() {
    if (!this.coloring) return;
    clearTimeout(this.#linkTimer);
    // In a frame of a notebook, addresses are relative to that of the notebook.
    this.#linkTimer = setTimeout(() => history.replaceState(null, "", this.address), LINK_DELAY_MS);
    this.invalidate();
  }

  /** Show a new view: on slow machines first in less detail, and in full once the camera stands still. */
  cameraMoved() {
    if (this.drawing.isSoftware && this.scene?.vertices > DRAFT_VERTICES) {
      this.#isDraft = true;
      this.canvas.ariaBusy = "true";
      clearTimeout(this.#settleTimer);
    }
    this.moved();
  }

  /** Draw in full if the camera does not move for a while after a draft: a slow machine may need longer for the draft. */
  #settle() {
    clearTimeout(this.#settleTimer);
    this.#settleTimer = setTimeout(() => {
      this.#isDraft = false;
      this.invalidate();
    }, SETTLE_MS);
  }

  /** Draw before the next frame. */
  invalidate() {
    if (this.#isDue) return;
    this.#isDue = true;
    requestAnimationFrame(() => this.#draw());
  }

  /** Describe the point at a position on the canvas, in CSS pixels. */
  pointAt(x, y) {
    this.#pointed.x = x;
    this.#pointed.y = y;
    this.#pointed.isInside = true;
    if (this.#isPointDue) return;
    this.#isPointDue = true;
    requestAnimationFrame(async () => {
      this.#isPointDue = false;
      if (!this.#pointed.isInside) return;
      const vertex = this.#pick(this.#pointed.x, this.#pointed.y);
      if (vertex < 0) this.#hideTooltip();
      else if (vertex !== this.#pointed.vertex) await this.#showTooltip(vertex);
      this.panes.mark(this.#pointed.vertex);
      const { left, top } = this.panes.active.canvas.getBoundingClientRect();
      this.tooltip.place(left + this.#pointed.x, top + this.#pointed.y);
    });
  }

  /** Describe no point any more. */
  pointAway() {
    this.#pointed.isInside = false;
    this.#hideTooltip();
  }

  #hideTooltip() {
    this.#pointed.vertex = -1;
    this.panes.mark(-1);
    this.tooltip.hide();
  }

  /** Select the vertex at a position, or measure the distance to it; nothing is selected on the background. */
  async select(x, y, isOther) {
    const vertex = this.#pick(x, y);
    if (vertex >= 0) await this.selection.pick(vertex, isOther || this.selection.isMeasuring);
    else this.selection.clear();
  }

  unselect() {
    this.pointAway();
    this.selection.clear();
  }

  /** Show a selection that has changed. */
  async selected() {
    this.overlay.setDistance(await this.selection.measured());
    await this.#showStates();
    this.invalidate();
  }

  /** Hide all groups but one. */
  async showOnly({ coloring, number }) {
    this.visibility.showOnly(this.scene, coloring, number);
    await this.#visibilityChanged();
  }

  /** Describe the point in the middle, for people without a mouse. */
  async announceMiddle() {
    this.pointAt(this.canvas.clientWidth / 2, this.canvas.clientHeight / 2);
    const vertex = this.#pick(this.#pointed.x, this.#pointed.y);
    const rows = vertex < 0 ? [] : await this.scene.describe(vertex);
    $("announcement").textContent = rows.map((pair) => pair.join(": ")).join("; ") || "nothing is in the middle";
  }

  centreOnMiddle() {
    this.centreAt(this.canvas.clientWidth / 2, this.canvas.clientHeight / 2);
  }

  /** Centre the point at a position, and turn about it from now on. */
  centreAt(x, y) {
    const vertex = this.#pick(x, y);
    if (vertex >= 0) this.centreOn(vertex);
  }

  centreOn(vertex) {
    this.camera.target = this.#point(vertex);
    this.cameraMoved();
  }

  /** Zoom towards the point at a position. */
  approach(x, y, factor) {
    this.camera.approach(this.#findAnchor(x, y), factor);
    this.cameraMoved();
  }

  /** Find the point at a position that keeps its place; the same one as long as the wheel keeps turning. */
  #findAnchor(x, y) {
    const now = performance.now();
    const isSame = this.#anchor.x === x && this.#anchor.y === y && now - this.#anchor.time < ANCHOR_MS;
    const point = isSame ? this.#anchor.point : this.#pointAlong(x, y);
    this.#anchor = { x, y, time: now, point };
    return point;
  }

  /** Return the point of the scene at a position; on the background, and from above, the one in the plane of the target. */
  #pointAlong(x, y) {
    const { camera, canvas } = this;
    const vertex = camera.isOrthographic ? -1 : this.#pick(x, y);
    camera.update(this.scene, this.aspect);
    const point = camera.pointInPicture((2 * x) / canvas.clientWidth - 1, 1 - (2 * y) / canvas.clientHeight, this.aspect);
    if (vertex < 0) return point;
    const depth = this.#point(vertex).reduce((sum, at, axis) => sum + (camera.eye[axis] - at) * camera.back[axis], 0);
    return point.map((at, axis) => camera.eye[axis] + ((at - camera.eye[axis]) * depth) / camera.distance);
  }

  /** Return the coordinates of a vertex, in metres. */
  #point(vertex) {
    const { origin, step } = this.scene;
    return origin.map((start, axis) => start + this.positions[3 * vertex + axis] * step);
  }

  toggle(name) {
    this.#set(name, !this.options[name].value);
  }

  /** Return to the first view, and show everything again. */
  async reset() {
    if (!this.scene) return;
    for (const name of ["ceiling", "ortho"]) this.options[name].value = this.options[name].start;
    this.camera.isOrthographic = this.options.ortho.value;
    this.camera.reset(this.scene, this.positions, this.aspect);
    this.clip.reset();
    this.selection.clear();
    this.#showOptions();
    await this.showAll();
  }

  /** Show all categories of all colourings. */
  async showAll() {
    this.visibility.showAll();
    await this.#visibilityChanged();
  }

  /** Open the next or the previous scene: of the list that the page was opened from, or of the page. */
  step(steps) {
    if (this.neighbours) {
      // The page takes the place of this one: one step back leads to the list.
      location.replace(this.neighbours.address(steps) + writeLinkOfNextScene(this));
      return;
    }
    const count = this.scenes.length;
    this.open(this.scenes[(this.scenes.indexOf(this.scene) + steps + count) % count]);
  }

  slide(id, steps) {
    const input = $(id);
    if (input.disabled) return;
    input.value = Number(input.value) + steps * (id === "ceiling" ? 0.1 : 1);
    input.dispatchEvent(new Event("input"));
  }

  explainLostMemory() {
    showTrouble("The browser needs the graphics memory elsewhere. This page continues as soon as it gets it back.");
  }

  unfold(isOpen) {
    document.body.classList.toggle("folded", !isOpen);
    $("fold").ariaExpanded = String(isOpen);
  }

  #pick(x, y) {
    if (!this.coloring) return -1;
    // The camera may have moved since the last picture.
    if (this.#isDue) this.#prepare();
    return this.panes.active.find(x, y, this.camera, this.view);
  }

  async #showTooltip(vertex) {
    this.#pointed.vertex = vertex;
    const { scene } = this;
    const rows = await scene.describe(vertex);
    if (this.#pointed.vertex === vertex && scene === this.scene) this.tooltip.show(rows);
  }

  /** Hide what the legend hides. */
  async #switched() {
    if (!this.coloring) return;
    this.#hideListed();
    await this.#showStates();
    this.moved();
  }

  /** Show all listed categories but one in faint colours; none if it is null. */
  #highlight(number) {
    if (!this.coloring || !this.view.background) return;
    this.panes.highlight(this.listing, number, this.view.background);
    this.invalidate();
  }

  /** The colourings of all panes: that of a name, or the first one, and those beside it that the scene has. */
  #colorings(scene, name) {
    const first = scene.coloring(name) ?? scene.coloring(this.data.color) ?? scene.colorings[0];
    const beside = this.beside.map((each) => scene.coloring(each)).filter(Boolean);
    return [first, ...beside].slice(0, MAX_PANES);
  }

  /** Show in the legend, too, that other categories are hidden. */
  async #visibilityChanged() {
    if (!this.coloring) return;
    this.#listHidden();
    this.legend.show(this.listing, this.hidden);
    await this.#showStates();
    this.moved();
  }

  /** List as hidden what one of the panes hides, and hide it in all panes. */
  #listHidden() {
    const { scene, visibility, listing } = this;
    this.hidden = new Set();
    this.panes.shown.forEach(({ coloring }, pane) => {
      for (const category of visibility.hidden(scene, coloring)) this.hidden.add(listing.numbers[pane][category]);
    });
    this.#hideListed();
  }

  /** Hide the categories of all panes that the listing hides. */
  #hideListed() {
    this.panes.shown.forEach(({ coloring }, pane) => {
      const own = this.listing.numbers[pane].flatMap((number, category) => (this.hidden.has(number) ? [category] : []));
      this.visibility.hide(this.scene, coloring, new Set(own));
    });
  }

  /** Hide the categories of a link: those that are listed, and those of other colourings. */
  #hideByLink(link) {
    this.visibility.showAll();
    for (const coloring of this.scene.colorings) {
      const words = link.hidden.get(coloring.name);
      if (!words) continue;
      this.visibility.hide(this.scene, coloring, hiddenByLink(words, coloring.categories));
      for (const name of words.hide ?? []) this.visibility.hideName(this.scene, coloring, name);
    }
    const listed = link.hidden.get("");
    if (listed) {
      this.hidden = hiddenByLink(listed, this.listing.categories);
      this.#hideListed();
    } else this.#listHidden();
  }

  /**
   * Draw hidden vertices no longer, and the selection with an outline. A pane hides by its own colouring, so that two
   * predictions of a class can be compared, and by those that no pane shows.
   */
  async #showStates() {
    const { scene, selection, panes, visibility } = this;
    const task = ++this.#statesTask;
    const shown = [...panes.shown];
    const states = await Promise.all(shown.map(({ coloring }) => {
      const hiding = visibility.hiding(scene).filter((each) => each === coloring || !panes.shows(each));
      return visibility.states(scene, hiding, selection.group);
    }));
    if (task !== this.#statesTask || scene !== this.scene) return;
    shown.forEach((pane, index) => pane.drawing.setStates(states[index]));
    this.#describeHidden();
    await this.#showBoxes(states[0]);
  }

  /** Mention what other colourings hide: the legend lists only the categories of the panes. */
  #describeHidden() {
    const others = this.visibility.hiding(this.scene).filter((coloring) => !this.panes.shows(coloring));
    const parts = others.map((coloring) => `${this.visibility.hidden(this.scene, coloring).size} of ${coloring.title}`);
    $("hidden-elsewhere").hidden = !parts.length;
    $("hidden-list").textContent = `Also hidden: ${parts.join(", ")}`;
  }

  /** Draw boxes around the instances that are shown, those of the current colouring or of the scene. */
  async #showBoxes(states) {
    const { scene, coloring } = this;
    const isOfInstances = coloring?.isPerScene && coloring.name !== "segments";
    const instances = isOfInstances ? coloring : scene.coloring("instances");
    const withoutBox = new RegExp(this.data.withoutBox);
    const boxes = [];
    if (this.options.boxes.value && instances) {
      const [values, limits] = await Promise.all([scene.values(instances), scene.boxes(instances)]);
      const isShown = new Uint8Array(instances.categories.length);
      const { low, high } = this.#limits();
      const isInside = (vertex) => low.every((start, axis) => {
        const at = this.positions[3 * vertex + axis];
        return at >= start && at <= high[axis];
      });
      values.forEach((number, vertex) => {
        if (!isShown[number] && (!states || states[vertex]) && isInside(vertex)) isShown[number] = 1;
      });
      instances.categories.forEach(({ name, color }, number) => {
        if (isShown[number] && !withoutBox.test(name)) boxes.push({ name, color, ...limits[number] });
      });
    }
    if (scene === this.scene) this.overlay.setBoxes(boxes);
  }

  /** The lowest and the highest corner of what clip box and ceiling leave, in steps from the origin of the scene. */
  #limits() {
    const { scene, options } = this;
    const { low, high } = this.clip.corners;
    high[2] = Math.min(high[2], (scene.floor + options.ceiling.value - scene.origin[2]) / scene.step);
    return { low, high };
  }

  /** Draw soon what clip box and ceiling leave. */
  async #limitsChanged() {
    this.moved();
    if (!this.options.boxes.value || !this.coloring) return;
    await this.#showStates();
    this.invalidate();
  }

  #prepare() {
    const { camera, canvas, view, options, scene } = this;
    camera.isOrthographic = options.ortho.value;
    camera.update(scene, this.aspect);
    const { slope } = this.data.camera;
    // The length of one metre in pixels, at a distance of one metre, or in all of an orthographic picture.
    view.metrePixels = Math.min(canvas.width, canvas.height) / (2 * slope) / (camera.isOrthographic ? camera.distance : 1);
    view.splatScale = options.points.value;
    Object.assign(view, this.#limits());
    view.hasMesh = options.mesh.value;
    view.hasGrid = options.grid.value;
    view.hasBacks = options.backs.value;
    view.hasEdges = options.edges.value && !this.#isDraft;
    view.hasOutline = this.selection.group !== null;
    view.isDraft = this.#isDraft;
    view.pixelRatio = devicePixelRatio * this.#scale;
    view.background = this.data.backgrounds[options.light.value ? "light" : "dark"];
    const [right, up, back] = this.data.light;
    for (let axis = 0; axis < 3; axis++) {
      view.light[axis] = right * camera.right[axis] + up * camera.up[axis] + back * camera.back[axis];
    }
  }

  #draw() {
    this.#isDue = false;
    if (!this.coloring || this.drawing.gl.isContextLost()) return;
    this.#prepare();
    for (const pane of this.panes.shown) pane.draw(this.camera, this.view);
    this.#drawAxes();
    this.frameMarks.place(this.camera, this.canvas.clientWidth, this.canvas.clientHeight);
    this.overlay.draw(this.camera);
    // Another point may be under the mouse now.
    if (this.#isDraft) {
      this.#hideTooltip();
      this.#settle();
    } else if (this.#pointed.isInside) this.pointAt(this.#pointed.x, this.#pointed.y);
    this.canvas.ariaBusy = String(this.#isDraft || this.#isLoading);
  }

  /**
   * Draw the picture larger, and return a copy of it.
   * @param {number} scale a factor of width and height
   * @param {number[]} background red, green and blue, 0..1
   */
  snapshot(scale, background) {
    const { canvas, drawing } = this;
    this.#scale = scale;
    try {
      this.#prepare();
      if (drawing.gl.drawingBufferWidth < canvas.width || drawing.gl.drawingBufferHeight < canvas.height) {
        throw new Error("the browser cannot draw a picture of this size: choose a smaller one");
      }
      // In full, also while the camera moves.
      const full = { ...this.view, background, isDraft: false, hasEdges: this.options.edges.value };
      this.panes.first.draw(this.camera, full);
      const copy = Object.assign(document.createElement("canvas"), { width: canvas.width, height: canvas.height });
      copy.getContext("2d").drawImage(canvas, 0, 0);
      return copy;
    } finally {
      this.#scale = 1;
      this.#prepare();
      this.invalidate();
    }
  }

  /** Make the picture to save; `figure.js` documents the options. */
  makeFigure(options) {
    return makeFigure(this, options);
  }

  /** Draw the directions of x, y and z in a corner of the picture. */
  #drawAxes() {
    const { right, up } = this.camera;
    for (let axis = 0; axis < 3; axis++) {
      const x = 26 * right[axis], y = -26 * up[axis];
      const [line, label] = this.axes[axis];
      line.setAttribute("x2", x.toFixed(1));
      line.setAttribute("y2", y.toFixed(1));
      label.setAttribute("x", (1.3 * x).toFixed(1));
      label.setAttribute("y", (1.3 * y + 4).toFixed(1));
    }
  }

  /** Show where the list of scenes is, and which scenes of it come before and after this one. */
  async #findNeighbours() {
    const neighbours = new Neighbours(this.scenes[0].name);
    this.neighbours = neighbours;
    $("home").href = neighbours.home;
    $("home").hidden = false;
    $("scene-choice").hidden = false;
    $("scenes").hidden = true;
    $("previous").disabled = true;
    $("next").disabled = true;
    await neighbours.load();
    $("position").textContent = neighbours.position;
    $("previous").disabled = !neighbours.address(-1);
    $("next").disabled = !neighbours.address(1);
  }

  #describeScene() {
    const { scene } = this;
    document.title = scene.name || this.data.title;
    const size = scene.size.map((length) => length.toFixed(1)).join(" × ");
    const facts = [scene.split, scene.frame, countOf(scene.vertices, "vertex", "vertices")];
    if (scene.triangles) facts.push(countOf(scene.triangles, "face", "faces"));
    $("scene-name").textContent = scene.name || this.data.title;
    $("facts").textContent = [...facts, `${size} m`].filter(Boolean).join(" · ");
    $("scenes").selectedIndex = this.scenes.indexOf(scene);
    $("mesh").hidden = !scene.triangles;
    $("cameras").hidden = !scene.frames;
    this.frameMarks.show(scene);
    $("ceiling").max = (Math.ceil(20 * (scene.origin[2] + scene.size[2] - scene.floor)) / 20).toFixed(2);
    this.#showOptions();
    const legend = $("colorings").querySelector("legend");
    $("colorings").replaceChildren(legend, ...scene.colorings.map((coloring, index) => makeChoice(coloring, index)));
  }

  /** Set the controls to the options. */
  #showOptions() {
    const { points, ceiling, mesh, grid, backs, boxes, cameras, light } = this.options;
    this.frameMarks.svg.classList.toggle("off", !cameras.value);
    $("point-size").value = 20 + 10 * Math.log2(points.value);
    $("point-size").disabled = mesh.value && this.scene.triangles > 0;
    $("point-size").ariaValueText = `${points.value.toFixed(2)} times`;
    const isWhole = ceiling.value >= Number($("ceiling").max);
    $("ceiling").value = isWhole ? $("ceiling").max : ceiling.value;
    $("ceiling").ariaValueText = isWhole ? "nothing is cut off" : `cut off at ${ceiling.value.toFixed(2)} m`;
    $("ceiling-value").textContent = isWhole ? "whole" : `${ceiling.value.toFixed(1)} m`;
    const switches = [["mesh", mesh], ["grid", grid], ["backs", backs], ["boxes", boxes], ["cameras", cameras], ["theme", light]];
    for (const [id, option] of switches) $(id).ariaPressed = option.value;
    document.documentElement.dataset.theme = light.value ? "light" : "dark";
  }

  #set(name, value) {
    this.options[name].value = value;
    if (this.scene) this.#showOptions();
    if (name === "boxes" && this.coloring) this.#showStates().then(() => this.invalidate());
    if (name === "ceiling") this.#limitsChanged();
    else this.moved();
  }

  #listen() {
    const { options } = this;
    $("point-size").addEventListener("input", (event) => this.#set("points", 2 ** ((event.target.value - 20) / 10)));
    $("ceiling").addEventListener("input", ({ target }) => {
      this.#set("ceiling", target.value === target.max ? Infinity : Number(target.value));
    });
    for (const [id, name] of [["mesh", "mesh"], ["grid", "grid"], ["backs", "backs"], ["boxes", "boxes"], ["cameras", "cameras"], ["theme", "light"]]) {
      $(id).addEventListener("click", () => this.#set(name, !options[name].value));
    }
    $("top").addEventListener("click", () => {
      if (!this.scene) return;
      options.ortho.value = true;
      this.camera.isOrthographic = true;
      this.camera.lookFromAbove(this.scene, this.positions, this.aspect);
      this.cameraMoved();
    });
    $("reset").addEventListener("click", () => this.reset());
    $("show-all").addEventListener("click", () => this.showAll());
    $("clip").addEventListener("click", () => {
      const isOpen = $("clip-panel").hidden;
      $("clip-panel").hidden = !isOpen;
      $("clip").ariaExpanded = String(isOpen);
    });
    $("clip-reset").addEventListener("click", () => {
      this.clip.reset();
      this.#limitsChanged();
    });
    $("colorings").addEventListener("change", (event) => this.color(event.target.value));
    $("beside").addEventListener("change", () => this.showBeside(this.panes.chosen));
    $("fold").addEventListener("click", () => this.unfold(document.body.classList.contains("folded")));
    $("keys").addEventListener("click", () => {
      $("help").showModal();
      // The focus is on the button at the end.
      $("help").scrollTop = 0;
    });
    $("scenes").append(...this.scenes.map((scene) => new Option(scene.split ? `${scene.name} (${scene.split})` : scene.name)));
    $("scenes").addEventListener("change", (event) => this.open(this.scenes[event.target.selectedIndex]));
    $("previous").addEventListener("click", () => this.step(-1));
    $("next").addEventListener("click", () => this.step(1));
    $("scene-choice").hidden = this.scenes.length < 2;
    if (this.data.isServed) this.#findNeighbours();
    this.axes = ["x", "y", "z"].map((name) => {
      const parts = ["line", "text"].map((kind) => document.createElementNS("http://www.w3.org/2000/svg", kind));
      for (const part of parts) part.setAttribute("class", name);
      parts[1].textContent = name;
      $("axes").append(...parts);
      return parts;
    });
    new ResizeObserver(() => this.invalidate()).observe(this.canvas);
    addEventListener("hashchange", () => this.follow(location.hash));
  }
}

/** Make the radio button of a colouring. */
function makeChoice(coloring, index) {
  const label = document.createElement("label");
  const input = document.createElement("input");
  Object.assign(input, { type: "radio", name: "coloring", value: coloring.name });
  label.title = `${coloring.title} (${index + 1})`;
  label.append(input, coloring.name);
  return label;
}

function showTrouble(text) {
  $("trouble").textContent = text;
  $("trouble").hidden = false;
}

/** Show the scenes of the page, or the reason why that is impossible. */
async function start() {
  if (!window.DecompressionStream) {
    showTrouble("This browser is too old: it cannot unpack the scenes. Firefox 121, Chrome 108, Safari 16.4 and later can.");
    return;
  }
  try {
    const viewer = new Viewer(JSON.parse($("data").textContent));
    window.viewer = viewer; // for the console
    viewer.unfold(innerWidth > 800);
    await viewer.follow(location.hash);
  } catch (error) {
    const isMissing = error.message === "no WebGL2";
    const advice = "scannet-prep view SCENE -o scene.png writes a picture instead.";
    const reason = "This browser shows no 3D pictures: WebGL2 is missing or switched off.";
    showTrouble(isMissing ? `${reason} ${advice}` : String(error));
  }
}

addEventListener("unhandledrejection", (event) => showTrouble(String(event.reason)));
start();
