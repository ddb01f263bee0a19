/** Lines and names over the picture: the boxes of instances, and the measured distance. */

const SVG = "http://www.w3.org/2000/svg";
// The nearest visible part of a line, in metres from the camera.
const NEAREST_LINE = 0.05;
// The corners of a box by number: its bits choose between low and high.
const BOX_EDGES = [0, 1, 2, 3, 4, 5, 6, 7].flatMap((corner) =>
  [1, 2, 4].filter((bit) => !(corner & bit)).map((bit) => [corner, corner | bit]),
);

class Overlay {
  #boxes = [];
  #ends = null;

  constructor() {
    this.svg = document.getElementById("overlay");
    this.boxGroup = this.svg.appendChild(makeShape("g", "boxes"));
    this.line = this.svg.appendChild(makeShape("path", "distance"));
    this.label = this.svg.appendChild(makeShape("text", "distance"));
  }

  /** @param {{name: string, color: string, low: number[], high: number[]}[]} boxes in metres */
  setBoxes(boxes) {
    this.#boxes = boxes.map((box) => {
      const path = makeShape("path", "");
      const label = makeShape("text", "");
      path.style.stroke = box.color;
      label.textContent = box.name;
      return { ...box, path, label };
    });
    this.boxGroup.replaceChildren(...this.#boxes.flatMap(({ path, label }) => [path, label]));
  }

  /** @param {?[number[], number[]]} ends of the measured distance, in metres; null for none */
  setDistance(ends) {
    this.#ends = ends;
    const length = ends && Math.hypot(...ends[0].map((at, axis) => at - ends[1][axis]));
    this.label.textContent = ends ? `${length.toFixed(3)} m` : "";
  }

  /** Move all lines to where the camera sees them. */
  draw(camera) {
    const { clientWidth: width, clientHeight: height } = this.svg;
    const project = (point) => projectPoint(camera.clipFromScene, point);
    const toPixels = ([x, y, w]) => [((x / w + 1) * width) / 2, ((1 - y / w) * height) / 2];
    const lineOf = (from, to) => {
      const ends = cutLine(project(from), project(to));
      return ends ? `M${ends.map((end) => toPixels(end).map((at) => at.toFixed(1))).join("L")}` : "";
    };
    const placeLabel = (label, point, up) => {
      const at = project(point);
      const [x, y] = toPixels(at);
      label.style.display = at[2] < NEAREST_LINE ? "none" : "";
      label.setAttribute("x", x.toFixed(1));
      label.setAttribute("y", (y - up).toFixed(1));
    };
    for (const { low, high, path, label } of this.#boxes) {
      const corner = (number) => low.map((at, axis) => ((number >> axis) & 1 ? high[axis] : at));
      path.setAttribute("d", BOX_EDGES.map(([from, to]) => lineOf(corner(from), corner(to))).join(""));
      placeLabel(label, [(low[0] + high[0]) / 2, (low[1] + high[1]) / 2, high[2]], 4);
    }
    this.line.setAttribute("d", this.#ends ? lineOf(...this.#ends) : "");
    if (this.#ends) placeLabel(this.label, this.#ends[0].map((at, axis) => (at + this.#ends[1][axis]) / 2), 6);
  }

  /**
   * Draw all lines and names on a picture to save, in the view of the latest call of `draw`.
   * @param {CanvasRenderingContext2D} context
   * @param {number} unit the pixels of the picture per pixel of the page
   * @param {{ink: string, paper: string}} colors of the names, and of the rims of their letters
   */
  paint(context, unit, { ink, paper }) {
    context.save();
    context.scale(unit, unit);
    context.lineJoin = "round";
    context.textAlign = "center";
    context.fillStyle = ink;
    for (const shape of this.svg.querySelectorAll("path, text")) {
      const { stroke, strokeWidth, font, display } = getComputedStyle(shape);
      if (display === "none") continue;
      context.lineWidth = Number.parseFloat(strokeWidth);
      if (shape.tagName === "path") {
        context.strokeStyle = stroke;
        context.stroke(new Path2D(shape.getAttribute("d")));
        continue;
      }
      context.strokeStyle = paper;
      context.font = font;
      const at = [shape.textContent, Number(shape.getAttribute("x")), Number(shape.getAttribute("y"))];
      context.strokeText(...at);
      context.fillText(...at);
    }
    context.restore();
  }
}

function makeShape(name, className) {
  const shape = document.createElementNS(SVG, name);
  shape.setAttribute("class", className);
  return shape;
}

/** Return x, y and w of a point in clip space; w is the distance from a perspective camera, and 1 otherwise. */
function projectPoint(m, [x, y, z]) {
  return [0, 1, 3].map((row) => m[row] * x + m[4 + row] * y + m[8 + row] * z + m[12 + row]);
}

/** Return the part of a line that is in front of the camera, or null. */
function cutLine(from, to) {
  if (from[2] < NEAREST_LINE && to[2] < NEAREST_LINE) return null;
  const cut = (near, end) => {
    if (end[2] >= NEAREST_LINE) return end;
    const share = (NEAREST_LINE - end[2]) / (near[2] - end[2]);
    return end.map((at, i) => at + share * (near[i] - at));
  };
  return [cut(to, from), cut(from, to)];
}
