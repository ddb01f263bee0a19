/** Mouse, touch and keys of the picture, which call methods of the viewer. */

const TURN = 0.087; // radians per key press: 5 degrees
const SHIFT = 0.05; // fraction of the picture's height per key press
const ZOOM = 1.15; // factor per key press

class PointerControls {
  #pointers = new Map(); // the position of each finger, by its id
  #hasMoved = false;

  constructor(canvas, viewer) {
    this.canvas = canvas;
    this.viewer = viewer;
    canvas.addEventListener("pointerdown", (event) => this.#press(event));
    canvas.addEventListener("pointermove", (event) => this.#move(event));
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, (event) => this.#release(event));
    canvas.addEventListener("pointerleave", () => viewer.pointAway());
    canvas.addEventListener("contextmenu", (event) => event.preventDefault());
    canvas.addEventListener("dblclick", (event) => viewer.turnAbout(event.offsetX, event.offsetY));
    canvas.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
  }

  #press(event) {
    this.canvas.setPointerCapture(event.pointerId);
    this.#pointers.set(event.pointerId, { x: event.offsetX, y: event.offsetY });
    this.#hasMoved = false;
  }

  #move(event) {
    const before = this.#pointers.get(event.pointerId);
    if (!before) {
      this.viewer.pointAt(event.offsetX, event.offsetY);
      return;
    }
    const { camera } = this.viewer;
    const height = this.canvas.clientHeight;
    const dx = (event.offsetX - before.x) / height, dy = (event.offsetY - before.y) / height;
    if (Math.abs(dx) + Math.abs(dy) > 0) this.#hasMoved = true;
    if (this.#pointers.size === 2) {
      const other = [...this.#pointers].find(([id]) => id !== event.pointerId)[1];
      const distance = (x, y) => Math.max(1, Math.hypot(x - other.x, y - other.y));
      camera.zoom(distance(before.x, before.y) / distance(event.offsetX, event.offsetY));
      camera.pan(-dx / 2, dy / 2);
    } else if (event.shiftKey || event.ctrlKey || event.buttons & 6) camera.pan(-dx, dy);
    else camera.orbit(-4 * dx, 4 * dy);
    before.x = event.offsetX;
    before.y = event.offsetY;
    this.viewer.pointAway();
    this.viewer.moved();
  }

  #release(event) {
    const isTap = event.pointerType !== "mouse" && !this.#hasMoved && this.#pointers.size === 1;
    this.#pointers.delete(event.pointerId);
    if (isTap) this.viewer.pointAt(event.offsetX, event.offsetY);
  }

  #wheel(event) {
    event.preventDefault();
    // Some browsers count in lines.
    const pixels = event.deltaY * (event.deltaMode ? 33 : 1);
    this.viewer.camera.zoom(Math.exp(Math.max(-300, Math.min(300, pixels)) * 0.0015));
    this.viewer.moved();
  }
}

/** Handle the keys, unless a control with the focus needs them itself. */
function listenToKeys(viewer) {
  const { camera } = viewer;
  const press = (id) => () => document.getElementById(id).click();
  const slide = (id, steps) => () => viewer.slide(id, steps);
  const turn = (right, up) => (event) => {
    if (event.shiftKey) camera.pan(SHIFT * right, SHIFT * up);
    else camera.orbit(TURN * right, TURN * up);
    viewer.moved();
  };
  const zoom = (factor) => () => {
    camera.zoom(factor);
    viewer.moved();
  };
  const search = () => {
    viewer.unfold(true);
    document.getElementById("search").focus();
  };
  const actions = {
    ArrowLeft: turn(-1, 0), ArrowRight: turn(1, 0), ArrowUp: turn(0, 1), ArrowDown: turn(0, -1),
    "+": zoom(1 / ZOOM), "=": zoom(1 / ZOOM), "-": zoom(ZOOM),
    "[": slide("point-size", -1), "]": slide("point-size", 1), ",": slide("ceiling", -1), ".": slide("ceiling", 1),
    t: press("top"), r: press("reset"), m: press("mesh"), x: press("backs"), g: press("grid"), b: press("theme"), l: press("fold"),
    k: press("cameras"), f: press("save"),
    n: press("next"), p: press("previous"), "?": press("keys"), "/": search,
    i: () => viewer.announceMiddle(), c: () => viewer.turnAboutMiddle(), Escape: () => viewer.pointAway(),
  };
  document.addEventListener("keydown", (event) => {
    const { target } = event;
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (target.tagName === "SELECT" || !viewer.coloring) return;
    if (target.id === "search") {
      if (event.key === "Escape") viewer.canvas.focus();
      return;
    }
    if (event.key.startsWith("Arrow") && target !== viewer.canvas && target !== document.body) return;
    const action = actions[event.key];
    const coloring = viewer.scene?.colorings[Number(event.key) - 1];
    if (action) action(event);
    else if (coloring) viewer.color(coloring.name);
    else return;
    event.preventDefault();
  });
}
