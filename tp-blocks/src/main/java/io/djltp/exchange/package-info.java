/**
 * Weights from and to the files of others: safetensors with the names of Hugging Face and PyTorch,
 * read by slice and written from the ranks; ONNX.
 */
@NullMarked
package io.djltp.exchange;

import org.jspecify.annotations.NullMarked;
