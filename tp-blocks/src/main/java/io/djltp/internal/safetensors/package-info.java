/** Files of named tensors in the safetensors format, written and read a piece at a time. */
@NullMarked
package io.djltp.internal.safetensors;

import org.jspecify.annotations.NullMarked;
