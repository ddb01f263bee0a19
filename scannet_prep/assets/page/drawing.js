/** The drawing of a scene with WebGL2: triangles or round points, a box, and the camera. */

const VERTEX_SHADER = `#version 300 es
uniform mat4 clipFromTarget;
uniform vec3 origin, eye;  // as seen from the target of the camera
uniform float stepSize;  // in metres
uniform float pointSize;  // in pixels, at a distance of 1 m
uniform bool isPoints, hasBacks;
layout(location = 0) in vec3 steps;  // from the origin
layout(location = 1) in vec3 normal;  // 0..1 for -1..1, and 128/255 for 0
layout(location = 2) in vec4 color;  // alpha is 0 for a hidden vertex
out vec3 fromTarget;
out vec4 mixedColor;
flat out vec4 ownColor;
flat out vec3 ownNormal;
flat out uint vertex;

void main() {
  fromTarget = origin + stepSize * steps;
  mixedColor = color;
  ownColor = color;
  ownNormal = 2.0 * normal - 256.0 / 255.0;
  vertex = uint(gl_VertexID);
  gl_Position = clipFromTarget * vec4(fromTarget, 1.0);
  gl_PointSize = pointSize / gl_Position.w;
  bool isBack = dot(ownNormal, eye - fromTarget) < 0.0 && !hasBacks;
  if (isPoints && (isBack || color.a == 0.0)) gl_Position = vec4(2.0, 2.0, 2.0, 1.0);  // outside
}
`;

const FRAGMENT_SHADER = `#version 300 es
precision highp float;
precision highp int;
uniform vec3 light;  // the direction towards the light
uniform float ceiling;  // above the target
uniform bool isPoints, isTriangles, isMixed, isPicking;
in vec3 fromTarget;
in vec4 mixedColor;
flat in vec4 ownColor;
flat in vec3 ownNormal;
flat in uint vertex;
out vec4 result;

void main() {
  bool isOutsideDisc = isPoints && length(gl_PointCoord - 0.5) > 0.5;
  bool isHidden = mixedColor.a < 0.999;  // at least one of the corners is hidden
  if (isOutsideDisc || isHidden || fromTarget.z > ceiling) discard;
  vec3 normal = ownNormal;
  if (isTriangles) normal = normalize(cross(dFdx(fromTarget), dFdy(fromTarget)));
  bool isLit = dot(normal, normal) > 0.5;
  float brightness = isLit ? mix(0.75, 1.0, abs(dot(normal, light))) : 1.0;
  result = vec4(brightness * (isMixed ? mixedColor.rgb : ownColor.rgb), 1.0);
  // The number of the vertex in four bytes; 0 is the background.
  if (isPicking) result = vec4(uvec4(vertex + 1u) >> uvec4(0, 8, 16, 24) & 255u) / 255.0;
}
`;

// The attributes of a vertex, by their location.
const STEPS = 0;
const NORMAL = 1;
const COLOR = 2;
// Half the height of the picture, per metre of distance: the camera sees 40 degrees.
const SLOPE = Math.tan(Math.PI / 9);
// The nearest visible depth, as a part of the distance.
const NEAR = 0.005;
// The camera comes no nearer to its target, which moves ahead of it instead, through walls.
const MIN_DISTANCE_M = 0.5;
// A plan is seen from this many times the distance, with a narrower view.
const FAR_AWAY = 100;
// The first view is from this many times the smallest distance, so that the scene has a margin.
const MARGIN = 1.04;
// While the camera moves, about this many points are drawn, and pixels are those of the screen.
const MOVING_POINTS = 40_000;
const STILL_MS = 150;
// At rest, a pixel of the screen is the mean of several, for smooth edges.
const MIN_PIXEL_RATIO = 2;
// Browsers may draw only a part of a larger canvas, such as that of a page that is zoomed out.
const MAX_PIXELS = 1 << 24;
// WebGL limits the distance between two values of an attribute to 255 bytes; steps take 6.
const MAX_EVERY = 42;
// A colour that stands out from those of the classes.
const BOX_COLOR = [1, 0, 0.8, 1];
// A way along all edges of a box. The bits of a corner choose the low or the high side of an axis.
const BOX_PATH = [0, 1, 3, 2, 0, 4, 5, 1, 5, 7, 3, 7, 6, 2, 6, 4];

/** Return a vector plus multiples of others. */
function add(vector, ...terms) {
  return vector.map((at, axis) => terms.reduce((sum, [by, other]) => sum + by * other[axis], at));
}

/** Return the dot product of two vectors. */
function dot(first, second) {
  return first.reduce((sum, at, axis) => sum + at * second[axis], 0);
}

/**
 * A camera that turns around a target; lengths are in metres, angles in radians.
 *
 * Points of the picture are parts of half its height, from its middle to the right and upwards.
 */
class Camera {
  target = [0, 0, 0];
  distance = 1;
  azimuth = 0;
  elevation = 0;
  isPlan = false; // without perspective

  /** The directions of the picture in the scene. */
  get axes() {
    const cosAzimuth = Math.cos(this.azimuth);
    const sinAzimuth = Math.sin(this.azimuth);
    const cosElevation = Math.cos(this.elevation);
    const sinElevation = Math.sin(this.elevation);
    return {
      right: [-sinAzimuth, cosAzimuth, 0],
      up: [-sinElevation * cosAzimuth, -sinElevation * sinAzimuth, cosElevation],
      back: [cosElevation * cosAzimuth, cosElevation * sinAzimuth, sinElevation],
    };
  }

  /** Show all of some points around a middle, from a corner of the room or as a plan. */
  fit(points, middle, aspect, isPlan) {
    this.isPlan = isPlan;
    this.azimuth = isPlan ? -Math.PI / 2 : -Math.PI / 3;
    this.elevation = isPlan ? Math.PI / 2 : (2 * Math.PI) / 9;
    this.target = middle;
    const { right, up, back } = this.axes;
    const distances = points.map((point) => {
      const fromTarget = add(point, [-1, middle]);
      const x = Math.abs(dot(fromTarget, right)) / aspect;
      const y = Math.abs(dot(fromTarget, up));
      return Math.max(x, y) / SLOPE + (isPlan ? 0 : dot(fromTarget, back));
    });
    this.distance = Math.max(MIN_DISTANCE_M, MARGIN * Math.max(...distances));
  }

  /** Turn around the target, never over the top. */
  orbit(x, y) {
    this.azimuth -= 2 * x;
    this.elevation = Math.max(-Math.PI / 2, Math.min(Math.PI / 2, this.elevation - 2 * y));
  }

  /** Move the scene to the right and upwards. */
  pan(x, y) {
    const { right, up } = this.axes;
    const metres = SLOPE * this.distance;
    this.target = add(this.target, [-x * metres, right], [-y * metres, up]);
  }

  /** Multiply the distance; what is at a point of the picture stays there. */
  zoom(factor, x = 0, y = 0) {
    this.pan((factor - 1) * x, (factor - 1) * y);
    this.distance *= factor;
    const missing = Math.max(0, MIN_DISTANCE_M - this.distance);
    this.target = add(this.target, [-missing, this.axes.back]);
    this.distance += missing;
  }

  /** The uniforms of the camera, for a pane of a width and a height in pixels. */
  project(width, height) {
    const { right, up, back } = this.axes;
    const times = this.isPlan ? FAR_AWAY : 1;
    const depth = times * this.distance; // of the target
    const scale = times / SLOPE;
    const near = NEAR * times * depth;
    const rows = [
      [...right.map((part) => (part * scale * height) / width), 0],
      [...up.map((part) => part * scale), 0],
      [...back.map((part) => -part), depth - 2 * near],
      [...back.map((part) => -part), depth],
    ];
    return {
      // Column by column.
      clipFromTarget: [0, 1, 2, 3].flatMap((column) => rows.map((row) => row[column])),
      eye: back.map((part) => part * depth),
      light: add([0, 0, 0], [0.8, back], [0.5, up], [-0.33, right]),
      metrePixels: (scale * height) / 2, // of a metre at a depth of 1 m
    };
  }
}

/**
 * A canvas with one or two panes, which show a scene in different colours from the same side.
 *
 * Two panes are side by side, or above each other where the canvas is higher than wide.
 */
class Drawing {
  camera = new Camera();
  view = {}; // hasMesh, hasBacks, and in metres pointSize and ceiling
  panes = []; // of each: colors, uint32 (V,), and isMixed, whether they mix within a triangle
  box = null; // around the selected object, in steps
  #frame = null; // the number of the requested frame
  #stillTimer = 0;
  #isMoving = false;

  /**
   * @param {HTMLCanvasElement} canvas
   * @param {object} scene `origin` and `step` in metres; `steps`, uint16 (V, 3); `normals` as
   *   colours, (V, 3), or null; `corners` of the triangles, (F, 3), which may be none.
   * @throws {Error} The browser has no WebGL2.
   */
  constructor(canvas, scene) {
    this.canvas = canvas;
    this.scene = scene;
    this.gl = canvas.getContext("webgl2", { antialias: false });
    if (!this.gl) throw new Error("it has no WebGL2, or it is switched off");
    this.#setUp();
    // Otherwise, the browser never restores it.
    canvas.addEventListener("webglcontextlost", (event) => event.preventDefault());
    canvas.addEventListener("webglcontextrestored", () => {
      this.#setUp();
      this.setPanes(this.panes);
    });
    new ResizeObserver(() => this.draw()).observe(canvas);
  }

  /** The width and the height of a pane, in pixels of the page. */
  get paneSize() {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const count = this.panes.length;
    return width > height ? [width / count, height] : [width, height / count];
  }

  /** Find the pane at a position: its index, and x and y in the unit of the camera. */
  locate({ offsetX, offsetY }) {
    const [width, height] = this.paneSize;
    // There is one row or one column.
    const index = Math.floor(offsetX / width) + Math.floor(offsetY / height);
    return {
      index: Math.min(index, this.panes.length - 1),
      x: (2 * (offsetX % width) - width) / height,
      y: 1 - (2 * (offsetY % height)) / height,
    };
  }

  /** Set the colours of one or two panes. */
  setPanes(panes) {
    const { gl } = this;
    this.panes = panes;
    panes.forEach(({ colors }, index) => {
      gl.bindBuffer(gl.ARRAY_BUFFER, this.colorBuffers[index]);
      gl.bufferData(gl.ARRAY_BUFFER, colors, gl.STATIC_DRAW);
    });
    this.draw();
  }

  /** Draw in the next frame: fast while the camera moves, and in full when it has stopped. */
  draw(isMoving = false) {
    this.#isMoving = isMoving;
    this.canvas.ariaBusy = "true";
    clearTimeout(this.#stillTimer);
    this.#frame ??= requestAnimationFrame(() => this.drawNow());
  }

  /** Draw at once: until the script ends, the canvas can be read. */
  drawNow() {
    const { canvas } = this;
    this.#frame = null;
    const most = Math.sqrt(MAX_PIXELS / canvas.clientWidth / canvas.clientHeight);
    const ratio = Math.min(most, Math.max(devicePixelRatio, this.#isMoving ? 1 : MIN_PIXEL_RATIO));
    const width = Math.round(canvas.clientWidth * ratio);
    const height = Math.round(canvas.clientHeight * ratio);
    // A new size empties the canvas.
    if (canvas.width !== width) canvas.width = width;
    if (canvas.height !== height) canvas.height = height;
    this.panes.forEach((_, index) => this.#drawPane(index, 0, 0));
    canvas.ariaBusy = String(this.#isMoving);
    if (this.#isMoving) this.#stillTimer = setTimeout(() => this.draw(), STILL_MS);
  }

  /** Return the vertex that is drawn at a position of the canvas, -1 for none. */
  pick(position) {
    const { gl, canvas } = this;
    const ratio = canvas.width / canvas.clientWidth;
    const column = Math.floor(position.offsetX * ratio);
    const row = canvas.height - 1 - Math.floor(position.offsetY * ratio);
    const bytes = new Uint8Array(4);
    gl.bindFramebuffer(gl.FRAMEBUFFER, this.pixel);
    this.#drawPane(this.locate(position).index, column, row, true);
    gl.readPixels(0, 0, 1, 1, gl.RGBA, gl.UNSIGNED_BYTE, bytes);
    gl.bindFramebuffer(gl.FRAMEBUFFER, null);
    return new Uint32Array(bytes.buffer)[0] - 1;
  }

  /** Return the area of a pane: its left and lower end, its width and height, in pixels. */
  #findArea(index) {
    const { canvas, paneSize } = this;
    const ratio = canvas.width / canvas.clientWidth;
    const [width, height] = paneSize.map((length) => Math.floor(length * ratio));
    if (canvas.width > canvas.height) return [index * width, 0, width, height];
    return [0, (this.panes.length - 1 - index) * height, width, height];
  }

  /** Draw a pane, with a pixel of the canvas in the lower left corner. */
  #drawPane(index, column, row, isPicking = false) {
    const { gl, view, camera, scene } = this;
    const [left, bottom, width, height] = this.#findArea(index);
    gl.viewport(left - column, bottom - row, width, height);
    gl.scissor(left - column, bottom - row, width, height);
    gl.clear(gl.COLOR_BUFFER_BIT | gl.DEPTH_BUFFER_BIT);

    const isTriangles = view.hasMesh && scene.corners.length > 0;
    const count = scene.steps.length / 3;
    const isThinned = this.#isMoving && !isPicking && !isTriangles;
    const every = isThinned ? Math.min(MAX_EVERY, Math.ceil(count / MOVING_POINTS)) : 1;
    const { metrePixels, ...uniforms } = camera.project(width, height);
    this.#setUniforms({
      ...uniforms,
      origin: add(scene.origin, [-1, camera.target]),
      stepSize: scene.step,
      pointSize: view.pointSize * metrePixels * Math.sqrt(every),
      ceiling: view.ceiling - camera.target[2],
      hasBacks: view.hasBacks,
      isMixed: this.panes[index].isMixed,
      isPoints: !isTriangles,
      isTriangles,
      isPicking,
    });
    gl.bindVertexArray(this.sceneState);
    // Neighbours in the arrays are neighbours in the room.
    this.#setAttribute(STEPS, this.stepsBuffer, gl.UNSIGNED_SHORT, 3, false, 6 * every);
    if (scene.normals) {
      this.#setAttribute(NORMAL, this.normalsBuffer, gl.UNSIGNED_BYTE, 3, true, 3 * every);
    }
    this.#setAttribute(COLOR, this.colorBuffers[index], gl.UNSIGNED_BYTE, 4, true, 4 * every);
    if (view.hasBacks) gl.disable(gl.CULL_FACE);
    else gl.enable(gl.CULL_FACE);
    if (isTriangles) gl.drawElements(gl.TRIANGLES, scene.corners.length, gl.UNSIGNED_INT, 0);
    else gl.drawArrays(gl.POINTS, 0, Math.floor(count / every));
    if (this.box && !isPicking) this.#drawBox(left, bottom, width, height);
  }

  /** Draw the edges of the box, two pixels wide: WebGL draws lines of one pixel. */
  #drawBox(left, bottom, width, height) {
    const { gl } = this;
    const { low, high } = this.box;
    const findCorner = (bits) => low.map((at, axis) => ((bits >> axis) & 1 ? high[axis] : at));
    const numbers = BOX_PATH.flatMap(findCorner);
    gl.bindVertexArray(this.boxState);
    gl.bindBuffer(gl.ARRAY_BUFFER, this.boxBuffer);
    gl.bufferData(gl.ARRAY_BUFFER, new Float32Array(numbers), gl.DYNAMIC_DRAW);
    this.#setUniforms({ isPoints: false, isTriangles: false });
    for (const shift of [0, 1]) {
      gl.viewport(left + shift, bottom + shift, width, height);
      gl.drawArrays(gl.LINE_STRIP, 0, BOX_PATH.length);
    }
  }

  /** Make everything that is lost with the context. */
  #setUp() {
    const { gl, scene } = this;
    this.program = makeProgram(gl);
    this.pixel = makePixel(gl);
    this.colorBuffers = [gl.createBuffer(), gl.createBuffer()];
    this.boxBuffer = gl.createBuffer();

    this.sceneState = gl.createVertexArray();
    gl.bindVertexArray(this.sceneState);
    this.stepsBuffer = makeBuffer(gl, gl.ARRAY_BUFFER, scene.steps);
    if (scene.normals) this.normalsBuffer = makeBuffer(gl, gl.ARRAY_BUFFER, scene.normals);
    makeBuffer(gl, gl.ELEMENT_ARRAY_BUFFER, scene.corners);
    // The normal of all vertices, unless there is an array.
    gl.vertexAttrib3f(NORMAL, 128 / 255, 128 / 255, 128 / 255);

    this.boxState = gl.createVertexArray();
    gl.bindVertexArray(this.boxState);
    this.#setAttribute(STEPS, this.boxBuffer, gl.FLOAT, 3, false, 0);
    // All corners of the box have this colour.
    gl.vertexAttrib4fv(COLOR, BOX_COLOR);

    gl.enable(gl.DEPTH_TEST);
    gl.enable(gl.SCISSOR_TEST);
  }

  /** Take an attribute of the vertices from a buffer. */
  #setAttribute(location, buffer, type, columns, isNormalized, stride) {
    const { gl } = this;
    gl.bindBuffer(gl.ARRAY_BUFFER, buffer);
    gl.enableVertexAttribArray(location);
    gl.vertexAttribPointer(location, columns, type, isNormalized, stride, 0);
  }

  /** Set uniforms: matrices, vectors, numbers and booleans. */
  #setUniforms(values) {
    const { gl } = this;
    for (const [name, value] of Object.entries(values)) {
      const location = gl.getUniformLocation(this.program, name);
      if (value.length === 16) gl.uniformMatrix4fv(location, false, value);
      else if (value.length === 3) gl.uniform3fv(location, value);
      else gl.uniform1f(location, Number(value));
    }
  }
}

/** Compile the shaders, and use them from now on. */
function makeProgram(gl) {
  const program = gl.createProgram();
  for (const [kind, text] of [
    [gl.VERTEX_SHADER, VERTEX_SHADER],
    [gl.FRAGMENT_SHADER, FRAGMENT_SHADER],
  ]) {
    const shader = gl.createShader(kind);
    gl.shaderSource(shader, text);
    gl.compileShader(shader);
    gl.attachShader(program, shader);
  }
  gl.linkProgram(program);
  const isLinked = gl.getProgramParameter(program, gl.LINK_STATUS);
  if (!isLinked) throw new Error(gl.getProgramInfoLog(program));
  gl.useProgram(program);
  return program;
}

/** Make a buffer that holds an array. */
function makeBuffer(gl, target, array) {
  const buffer = gl.createBuffer();
  gl.bindBuffer(target, buffer);
  gl.bufferData(target, array, gl.STATIC_DRAW);
  return buffer;
}

/** Make a framebuffer of one pixel, to find the vertex at a pixel of the canvas. */
function makePixel(gl) {
  const framebuffer = gl.createFramebuffer();
  gl.bindFramebuffer(gl.FRAMEBUFFER, framebuffer);
  for (const [attachment, format] of [
    [gl.COLOR_ATTACHMENT0, gl.RGBA8],
    [gl.DEPTH_ATTACHMENT, gl.DEPTH_COMPONENT24],
  ]) {
    const buffer = gl.createRenderbuffer();
    gl.bindRenderbuffer(gl.RENDERBUFFER, buffer);
    gl.renderbufferStorage(gl.RENDERBUFFER, format, 1, 1);
    gl.framebufferRenderbuffer(gl.FRAMEBUFFER, attachment, gl.RENDERBUFFER, buffer);
  }
  gl.bindFramebuffer(gl.FRAMEBUFFER, null);
  return framebuffer;
}

// How far a key moves to the right and upwards, in the unit of the camera, and its zoom factor.
const KEYS = {
  ArrowLeft: [-0.1, 0, 1],
  ArrowRight: [0.1, 0, 1],
  ArrowUp: [0, 0.1, 1],
  ArrowDown: [0, -0.1, 1],
  "+": [0, 0, 0.9],
  "-": [0, 0, 1.1],
};
// A click may move the mouse by less.
const DRAG_PX = 4;

/**
 * Let the mouse, fingers and keys move the camera of a drawing.
 *
 * Turn: drag, or arrow keys. Move: drag with Shift or another button, drag with two fingers, or
 * Shift and arrow keys. Zoom: wheel, two fingers, or plus and minus.
 */
function listenToCamera(drawing, onMove, onClick) {
  const { canvas, camera } = drawing;
  const pointers = new Map(); // of each that is pressed: its last event
  let travelled = 0; // in pixels, since one was pressed

  canvas.addEventListener("pointerdown", (event) => {
    travelled = 0;
    pointers.set(event.pointerId, event);
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("lostpointercapture", (event) => pointers.delete(event.pointerId));
  canvas.addEventListener("pointermove", (event) => {
    const last = pointers.get(event.pointerId);
    if (!last) return;
    pointers.set(event.pointerId, event);
    const right = event.clientX - last.clientX;
    const down = event.clientY - last.clientY;
    travelled += Math.hypot(right, down);
    const [, height] = drawing.paneSize;
    const x = (2 * right) / height;
    const y = (-2 * down) / height;
    const other = [...pointers.values()].find((each) => each.pointerId !== event.pointerId);
    if (other) {
      const offsetX = (event.offsetX + other.offsetX) / 2;
      const offsetY = (event.offsetY + other.offsetY) / 2;
      const middle = drawing.locate({ offsetX, offsetY });
      camera.pan(x / 2, y / 2);
      camera.zoom(measureSpread(last, other) / measureSpread(event, other), middle.x, middle.y);
    } else if (event.shiftKey || event.buttons > 1) camera.pan(x, y);
    else camera.orbit(x, y);
    onMove();
  });
  canvas.addEventListener("click", (event) => {
    if (travelled < DRAG_PX) onClick(event);
  });
  canvas.addEventListener("contextmenu", (event) => event.preventDefault());
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    // Two fingers on a touchpad are reported as a wheel with Control, in small steps.
    const steps = event.deltaY * (event.ctrlKey ? 10 : 1);
    const { x, y } = drawing.locate(event);
    camera.zoom(Math.exp(steps / 1000), x, y);
    onMove();
  });
  canvas.addEventListener("keydown", (event) => {
    // The browser itself zooms with Control and plus, and goes back with Alt and an arrow.
    if (!(event.key in KEYS) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const [x, y, factor] = KEYS[event.key];
    camera.zoom(factor);
    if (event.shiftKey) camera.pan(x, y);
    else camera.orbit(x, y);
    onMove();
  });
}

/** Return the distance between two fingers in pixels, never zero. */
function measureSpread(first, second) {
  return 1 + Math.hypot(first.clientX - second.clientX, first.clientY - second.clientY);
}
