/** Files of named tensors in the safetensors format, written and read a piece at a time. */
package io.djltp.internal.safetensors;
