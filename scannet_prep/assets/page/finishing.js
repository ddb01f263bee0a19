/** The picture before it is finished: its colours and depths, from which edges and outlines are drawn on the canvas. */

const SAMPLES = 4;

class Finishing {
  #width = 0;
  #height = 0;
  #samples = -1;
  #textures = [];
  #buffers = [];

  constructor(gl) {
    this.gl = gl;
    this.program = new Program(gl, FINISH_VERTEX_SHADER, FINISH_SHADER);
    this.state = gl.createVertexArray();
    this.plain = gl.createFramebuffer();
    this.smooth = gl.createFramebuffer(); // several samples a pixel
  }

  /** Make all following drawing go into the unfinished picture, with smooth edges of triangles on request. */
  begin(width, height, isSmooth) {
    const { gl } = this;
    const samples = isSmooth ? SAMPLES : 0;
    if (width !== this.#width || height !== this.#height || samples !== this.#samples) {
      this.#allocate(width, height, samples);
    }
    gl.bindFramebuffer(gl.FRAMEBUFFER, samples ? this.smooth : this.plain);
    gl.viewport(0, 0, width, height);
  }

  /** Draw the picture on the canvas, in its size. `view`: hasEdges, hasOutline, pixelRatio. */
  finish(camera, view, canvas) {
    const { gl } = this;
    if (this.#samples) this.#resolve();
    gl.bindFramebuffer(gl.FRAMEBUFFER, null);
    gl.viewport(0, 0, canvas.width, canvas.height);
    const uniforms = this.program.use();
    gl.bindVertexArray(this.state);
    this.#textures.forEach((texture, unit) => {
      gl.activeTexture(gl.TEXTURE1 + unit);
      gl.bindTexture(gl.TEXTURE_2D, texture);
    });
    gl.activeTexture(gl.TEXTURE0);
    gl.uniform1i(uniforms.colors, 1);
    gl.uniform1i(uniforms.depths, 2);
    gl.uniform1i(uniforms.hasEdges, view.hasEdges ? 1 : 0);
    gl.uniform1i(uniforms.hasOutline, view.hasOutline ? 1 : 0);
    gl.uniform1i(uniforms.isOrthographic, camera.isOrthographic ? 1 : 0);
    // With the depth from 0 to 1, the distance is far * near / (far - depth * (far - near)).
    gl.uniform1f(uniforms.nearnessStart, camera.far / (camera.far - camera.near));
    gl.uniform1f(uniforms.depthScale, (camera.far - camera.near) / camera.distance);
    gl.uniform2f(uniforms.scale, this.#width / canvas.width, this.#height / canvas.height);
    gl.uniform1i(uniforms.reach, Math.max(1, Math.round(1.5 * view.pixelRatio)));
    gl.disable(gl.DEPTH_TEST);
    gl.drawArrays(gl.TRIANGLES, 0, 3);
    gl.enable(gl.DEPTH_TEST);
  }

  /** Copy the mean colours, and the depth of one of the samples. */
  #resolve() {
    const { gl } = this;
    const box = [0, 0, this.#width, this.#height];
    gl.bindFramebuffer(gl.READ_FRAMEBUFFER, this.smooth);
    gl.bindFramebuffer(gl.DRAW_FRAMEBUFFER, this.plain);
    gl.blitFramebuffer(...box, ...box, gl.COLOR_BUFFER_BIT | gl.DEPTH_BUFFER_BIT, gl.NEAREST);
  }

  #allocate(width, height, samples) {
    const { gl } = this;
    this.#width = width;
    this.#height = height;
    this.#samples = samples;
    for (const texture of this.#textures) gl.deleteTexture(texture);
    for (const buffer of this.#buffers) gl.deleteRenderbuffer(buffer);
    const parts = [
      [gl.RGBA8, gl.COLOR_ATTACHMENT0],
      [gl.DEPTH_COMPONENT24, gl.DEPTH_ATTACHMENT],
    ];
    gl.activeTexture(gl.TEXTURE1);
    gl.bindFramebuffer(gl.FRAMEBUFFER, this.plain);
    this.#textures = parts.map(([format, attachment]) => {
      const texture = gl.createTexture();
      gl.bindTexture(gl.TEXTURE_2D, texture);
      gl.texStorage2D(gl.TEXTURE_2D, 1, format, width, height);
      gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_MIN_FILTER, gl.NEAREST);
      gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_MAG_FILTER, gl.NEAREST);
      gl.framebufferTexture2D(gl.FRAMEBUFFER, attachment, gl.TEXTURE_2D, texture, 0);
      return texture;
    });
    gl.bindTexture(gl.TEXTURE_2D, null);
    gl.activeTexture(gl.TEXTURE0);
    this.#buffers = [];
    if (!samples) return;
    gl.bindFramebuffer(gl.FRAMEBUFFER, this.smooth);
    this.#buffers = parts.map(([format, attachment]) => {
      const buffer = gl.createRenderbuffer();
      gl.bindRenderbuffer(gl.RENDERBUFFER, buffer);
      gl.renderbufferStorageMultisample(gl.RENDERBUFFER, samples, format, width, height);
      gl.framebufferRenderbuffer(gl.FRAMEBUFFER, attachment, gl.RENDERBUFFER, buffer);
      return buffer;
    });
  }
}
