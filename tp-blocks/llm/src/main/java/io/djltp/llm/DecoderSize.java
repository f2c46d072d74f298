package io.djltp.llm;

/**
 * For what a decoder has room.
 *
 * @param batch texts at a time
 * @param length tokens of a text, prompt and new ones together
 * @param rows tokens of a step
 */
record DecoderSize(int batch, int length, int rows) {}
