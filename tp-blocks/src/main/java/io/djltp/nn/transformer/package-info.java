/** Layers of transformers, cut over the ranks. */
@NullMarked
package io.djltp.nn.transformer;

import org.jspecify.annotations.NullMarked;
