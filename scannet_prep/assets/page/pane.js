/** A picture of the scene: a canvas with its drawing and its colouring, and a ring around the vertex under the mouse. */
class Pane {
  coloring = null;

  /** @param {HTMLCanvasElement} canvas inside an element that also holds caption and ring. */
  constructor(canvas) {
    this.canvas = canvas;
    this.root = canvas.parentElement;
    // With its size first: a new size makes the browser wait for all that the context has begun.
    this.resize();
    this.drawing = new Drawing(canvas);
    this.picking = new Picking(this.drawing);
    this.caption = Object.assign(document.createElement("p"), { className: "caption", hidden: true });
    this.ring = Object.assign(document.createElement("span"), { className: "ring", hidden: true });
    this.root.append(this.caption, this.ring);
  }

  setColoring(coloring, values) {
    this.coloring = coloring;
    this.caption.textContent = coloring.title;
    this.drawing.setColoring(values, coloring.categories);
  }

  /** Show all categories but one in faint colours; none if the number is null. `background`: 0..1 per channel. */
  highlight(number, background) {
    const isKept = (index) => number === null || index === number;
    this.drawing.setColors(this.coloring.categories.map(({ color }, index) => (isKept(index) ? color : fade(color, background))));
  }

  /** Give the canvas as many pixels as the screen has for it, or that times a scale. */
  resize(scale = 1) {
    const { canvas } = this;
    const pixelRatio = devicePixelRatio * scale;
    const width = Math.max(1, Math.round(canvas.clientWidth * pixelRatio));
    const height = Math.max(1, Math.round(canvas.clientHeight * pixelRatio));
    if (canvas.width !== width || canvas.height !== height) {
      canvas.width = width;
      canvas.height = height;
    }
  }

  draw(camera, view) {
    // It has no colouring until that is loaded.
    if (this.coloring) this.drawing.draw(camera, view);
  }

  /** Return the vertex at a position on the canvas, in CSS pixels; -1 if there is none. */
  find(x, y, camera, view) {
    const scale = this.canvas.width / this.canvas.clientWidth;
    return this.picking.find(Math.floor(x * scale), Math.floor(y * scale), camera, view);
  }

  /** Put the ring around a point, in metres; hide it if the point is null or behind the camera. */
  mark(point, { clipFromScene }) {
    const clip = point && projectPoint(clipFromScene, point);
    this.ring.hidden = !clip || clip[2] <= 0;
    if (this.ring.hidden) return;
    this.ring.style.left = `${50 + (50 * clip[0]) / clip[2]}%`;
    this.ring.style.top = `${50 - (50 * clip[1]) / clip[2]}%`;
  }
}

/** Mix a colour, `#rrggbb`, with much of the background. */
function fade(color, background) {
  const mixed = background.map((part, channel) => {
    const own = Number.parseInt(color.slice(2 * channel + 1, 2 * channel + 3), 16);
    return Math.round(0.15 * own + 0.85 * 255 * part).toString(16).padStart(2, "0");
  });
  return `#${mixed.join("")}`;
}
